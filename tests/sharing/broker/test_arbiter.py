"""What a broker decides, with a clock of the tests'."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.arbiter.arbiter import Arbiter
from slurm_hadar.sharing.broker.messages import Message, Notice, Progress
from slurm_hadar.sharing.broker.settings import Rules
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.sizes import MOST_BYTES
from slurm_hadar.sharing.turns import Policy
from tests.sharing.broker.conftest import DEMAND, MS, arbiter_of, ten_turns


def test_a_turn_goes_to_one_of_a_lane_at_a_time() -> None:
    arbiter = arbiter_of(Policy.FAIR, "a", "b")

    assert arbiter.want("a", 0) == [Notice("a", Message.TURN)]
    assert arbiter.want("b", 1) == [Notice("a", Message.RECALL)]
    assert arbiter.done("a", 10 * MS) == [Notice("b", Message.TURN)]
    assert arbiter.holders() == {"b": 10 * MS}


def test_a_turn_that_nobody_else_asks_for_is_kept_and_charged_for_as_its_holder_tells() -> None:
    arbiter = arbiter_of(Policy.FAIR, "a", "b")
    arbiter.want("a", 0)
    arbiter.account("a", Progress(5, 5 * MS, 6 * MS, 6 * MS), 7 * MS)

    view = arbiter.view("a", 7 * MS)
    assert view is not None and (view.state, view.turns, view.used_ns) == ("keeps", 5, 5 * MS)
    arbiter.account("a", Progress(6, 6 * MS, 8 * MS, 7 * MS), 9 * MS)  # it is in the next one
    assert arbiter.want("b", 9 * MS) == [Notice("a", Message.RECALL)]
    assert arbiter.recalled() == {"a": 9 * MS}
    assert arbiter.done("a", 10 * MS, Progress(7, 7 * MS, 8 * MS, 10 * MS)) == [Notice("b", Message.TURN)]
    view = arbiter.view("a", 10 * MS)
    assert view is not None and (view.turns, view.used_ns) == (7, 8 * MS)


@given(
    spans=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
    looks=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 30), st.booleans()), min_size=1, max_size=8),
)
def test_an_iteration_is_charged_for_once_whenever_it_is_looked_at(
    spans: list[tuple[int, int]], looks: list[tuple[int, int, bool]]
) -> None:
    """However long it takes from a look to the clock, and also where a look falls into the writing of what it sees. A
    rest of within such a time may be charged for if the turn is recalled then; none else is."""
    told, now = [Progress()], 0
    for computes, rests in spans:
        begun = told[-1]._replace(began_ns=now)
        now += computes
        told += [begun, Progress(begun.iterations + 1, begun.used_ns + computes, begun.began_ns, now)]
        now += rests

    def at(moment: int) -> Progress:
        return [one for one in told if max(one.began_ns, one.ended_ns) <= moment][-1]

    arbiter, now, took, known = arbiter_of(Policy.FAIR, "a", "b"), 0, 0, 0
    arbiter.want("a", 0)
    for gap, took, torn in looks:
        now += gap
        seen = at(now)
        known, before = seen.iterations, known
        if torn and known > before:
            seen = told[2 * seen.iterations - 1]._replace(iterations=known)
        arbiter.account("a", seen, now + took)
        now += took
        view = arbiter.view("a", now)
        assert view is not None and 0 <= view.used_ns <= now
    arbiter.want("b", now)
    last = at(now)
    if arbiter.has_iterated("a", last) and last.ended_ns >= last.began_ns:
        arbiter.take_back("a", last, now)
        took = 0
    else:
        last = next((one for one in told if one.iterations > last.iterations), told[-1])
        arbiter.done("a", max(now, last.ended_ns), last)

    view = arbiter.view("a", now)
    assert view is not None and view.turns == last.iterations
    assert last.used_ns <= view.used_ns <= last.used_ns + took


@pytest.mark.parametrize("policy", [Policy.FAIR, Policy.RR])
def test_who_comes_back_starts_level_with_the_holder_whatever_that_tells(policy: Policy) -> None:
    arbiter = arbiter_of(policy, "a", "b", grace_ns=0)
    arbiter.want("a", 0)
    arbiter.account("a", Progress(10**6, 10**18, 0, 0), 1000 * MS)  # more than there was time for
    now = 1000 * MS
    arbiter.want("b", now)

    assert 4 <= ten_turns(arbiter, now).count("a") <= 6


def test_a_turn_is_taken_back_from_who_is_between_two_iterations() -> None:
    """But not before it has had one; what it says of a turn that it no longer has is no fault."""
    arbiter = arbiter_of(Policy.FAIR, "a", "b", grace_ns=0)
    arbiter.want("a", 0)
    assert not arbiter.has_iterated("a", Progress())
    assert arbiter.has_iterated("a", told := Progress(1, MS, 0, MS))

    assert arbiter.want("b", 3 * MS) == [Notice("a", Message.RECALL)]
    assert arbiter.take_back("a", told, 3 * MS) == [Notice("b", Message.TURN)]
    assert arbiter.done("a", 4 * MS) == []
    with pytest.raises(ChannelError, match="has no turn that could be over"):
        arbiter.done("a", 4 * MS)


def test_a_kept_turn_is_recalled_for_who_waits_for_the_lanes_memory() -> None:
    arbiter = arbiter_of(Policy.FAIR, memory=100)
    arbiter.join("large", Demand(0, 90), 0, "", 0)
    arbiter.join("a", Demand(5, 10), 0, "", 0)
    assert arbiter.join("next", Demand(80, 10), 0, "", 0) == []
    arbiter.want("a", 5 * MS)
    assert arbiter.leave("large", 6 * MS) == [Notice("a", Message.RECALL)]

    assert arbiter.done("a", 7 * MS) == [Notice("next", Message.ADMITTED)]


@pytest.mark.parametrize(("switch_ns", "after_ns"), [(0, 0), (3 * MS, 60 * MS), (10**12, 1000 * MS), (-(10**12), 0)])
@pytest.mark.parametrize("policy", [Policy.FAIR, Policy.RR, Policy.PRIORITY])
def test_turns_are_as_long_as_a_dear_hand_over_is_worth_where_all_are_equal(
    policy: Policy, switch_ns: int, after_ns: int
) -> None:
    """And no longer than a second, whatever is told."""
    arbiter = arbiter_of(policy, "a", "b", grace_ns=0)
    arbiter.want("a", 0)
    arbiter.done("a", MS)
    arbiter.want("a", 2 * MS, Progress(1, MS, 0, MS, switch_ns=switch_ns))
    recall = [Notice("a", Message.RECALL)]
    if policy is Policy.PRIORITY or after_ns == 0:
        assert arbiter.want("b", 3 * MS) == recall
        return
    assert arbiter.want("b", 3 * MS) == []
    assert arbiter.look(2 * MS + after_ns - MS) == []
    assert arbiter.deadline_ns() == 2 * MS + after_ns - MS  # whether it rests is to be looked for all the while
    assert arbiter.look(2 * MS + after_ns - 1) == []
    assert arbiter.look(2 * MS + after_ns) == recall
    assert arbiter.done("a", 2 * MS + after_ns + MS) == [Notice("b", Message.TURN)]
    view = arbiter.view("a", 2 * MS + after_ns + MS)
    assert view is not None and view.used_ns == 2 * MS + after_ns  # all of it is charged for


@pytest.mark.parametrize(("behind_ms", "after_ms"), [(0, 100), (160, 160), (5000, 1000)])
def test_a_turn_that_would_go_to_its_holder_again_goes_on(behind_ms: int, after_ms: int) -> None:
    """Until it is level with those who wait, and for a second at the most, whatever it tells."""
    arbiter = arbiter_of(Policy.FAIR, "a", "b", grace_ns=2 * MS)
    arbiter.want("a", 0)
    arbiter.want("b", 0)
    arbiter.done("a", MS)
    arbiter.want("a", MS, Progress(1, 0, switch_ns=5 * MS))
    began = (behind_ms + 2) * MS
    assert arbiter.done("b", began) == [Notice("a", Message.TURN)]
    arbiter.want("b", began)
    told, now = Progress(1, 0, began + 1, switch_ns=5 * MS), began
    while arbiter.recalled() == {}:
        now += 2 * MS
        arbiter.account("a", told, now)
        arbiter.look(now)
        deadline = arbiter.deadline_ns()
        assert deadline is None or now < deadline <= now + 2 * MS
    assert began + after_ms * MS <= now <= began + (after_ms + 4) * MS


def test_who_rests_in_a_turn_that_would_last_is_not_waited_for() -> None:
    """Loading data, say. A moment between two iterations is none."""
    arbiter = arbiter_of(Policy.FAIR, "a", "b", grace_ns=2 * MS)
    arbiter.want("a", 0, Progress(switch_ns=10 * MS))
    assert arbiter.want("b", 1 * MS) == []
    arbiter.account("a", Progress(1, 5 * MS, 0, 5 * MS, switch_ns=10 * MS), 6 * MS)
    assert arbiter.look(6 * MS) == [] and arbiter.deadline_ns() == 7 * MS
    arbiter.account("a", Progress(1, 5 * MS, 6 * MS + 1, 5 * MS, switch_ns=10 * MS), 8 * MS)  # it goes on
    assert arbiter.look(8 * MS) == [] and arbiter.deadline_ns() == 10 * MS
    arbiter.account("a", Progress(2, 7 * MS, 6 * MS + 1, 9 * MS, switch_ns=10 * MS), 10 * MS)
    assert arbiter.look(10 * MS) == []
    arbiter.account("a", Progress(2, 7 * MS, 6 * MS + 1, 9 * MS, switch_ns=10 * MS), 11 * MS)
    assert arbiter.look(11 * MS) == [Notice("a", Message.RECALL)]


def test_who_needs_little_of_the_gpu_waits_for_no_long_turn() -> None:
    arbiter = arbiter_of(Policy.FAIR, "a", "b", grace_ns=2 * MS)
    arbiter.want("a", 0, Progress(switch_ns=10 * MS))
    assert arbiter.want("b", 1 * MS, Progress(9, 9 * MS, 0, 0, away_ns=10 * MS)) == [Notice("a", Message.RECALL)]


def test_under_pack_jobs_run_beside_each_other() -> None:
    arbiter = arbiter_of(Policy.PACK, "a", "b")

    assert arbiter.want("a", 0) == [Notice("a", Message.TURN)]
    assert arbiter.want("b", 0) == [Notice("b", Message.TURN)]


def test_the_first_by_rank_is_waited_for_a_little() -> None:
    """It has just given its turn back and will ask again at once; who stays away is not waited for again."""
    arbiter = arbiter_of(Policy.SRTF)
    arbiter.join("long", DEMAND, 10**12, "", 0)
    arbiter.want("long", 0)
    assert arbiter.join("short", DEMAND, 10**9, "", 0) == [Notice("short", Message.ADMITTED)]
    arbiter.want("short", 1)

    assert arbiter.done("long", 5 * MS) == [Notice("short", Message.TURN)]
    arbiter.want("long", 5 * MS)
    assert arbiter.done("short", 6 * MS) == [] and arbiter.deadline_ns() == 8 * MS
    assert arbiter.look(8 * MS - 1) == []
    assert arbiter.want("short", 8 * MS - 1) == [Notice("short", Message.TURN), Notice("short", Message.RECALL)]
    assert arbiter.done("short", 9 * MS) == []
    assert arbiter.look(11 * MS) == [Notice("long", Message.TURN)]
    arbiter.done("long", 12 * MS)
    assert arbiter.want("long", 12 * MS) == [Notice("long", Message.TURN)]


def test_time_away_is_not_saved_up() -> None:
    arbiter = arbiter_of(Policy.FAIR, "a", "b", grace_ns=0)
    now = 0
    for _ in range(100):  # b asks for nothing
        assert arbiter.want("a", now) == [Notice("a", Message.TURN)]
        now += MS
        arbiter.done("a", now)
    arbiter.want("b", now)
    arbiter.want("a", now)

    assert 4 <= ten_turns(arbiter, now).count("a") <= 6


def test_who_is_gone_leaves_turn_and_lane_to_the_others() -> None:
    arbiter = arbiter_of(Policy.FAIR, "a", "b", memory=120)
    arbiter.join("c", Demand(60, 50), 0, "", 0)
    arbiter.want("a", 0)
    arbiter.want("b", 0)

    assert arbiter.leave("a", MS) == [Notice("c", Message.ADMITTED), Notice("b", Message.TURN)]
    assert arbiter.leave("a", MS) == [] and arbiter.is_safe()
    for name in ("b", "c"):
        arbiter.leave(name, 2 * MS)
    assert arbiter.memory.reserved_bytes == 0


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda d: d.join("a", DEMAND, 0, "", 0), "has joined already"),
        (lambda d: d.join("z", Demand(1000, 1), 0, "", 0), "1001 bytes are needed, and the GPU has 1000 for jobs"),
        (lambda d: d.want("z", 0), "has not been admitted"),
        (lambda d: d.done("a", 0), "has no turn that could be over"),
        (lambda d: (d.want("a", 0), d.want("a", 0)), "has asked for a turn already"),
    ],
)
def test_what_may_not_be_asked_is_refused(ask: object, says: str) -> None:
    arbiter = arbiter_of(Policy.FAIR, "a")

    with pytest.raises(ChannelError, match=says):
        ask(arbiter)
    assert arbiter.is_safe()


actions = st.lists(
    st.tuples(
        st.sampled_from(["join", "step", "die", "wait", "free"]),
        st.integers(0, 40),
        st.integers(0, 60),
        st.integers(0, 9),
    ),
    max_size=60,
)


def _told(notices: list[Notice]) -> list[tuple[str, str]]:
    return [(notice.name, notice.message.value) for notice in notices]


def test_memory_is_kept_from_turn_to_turn_where_all_have_room() -> None:
    """By those that can give it back when it is needed; who has none to keep is not told."""
    arbiter = arbiter_of(memory=200)
    assert _told(arbiter.join("a", DEMAND, 0, "", 0, can_keep=True)) == [("a", "admitted"), ("a", "keep")]
    assert _told(arbiter.join("b", DEMAND, 0, "", 0, can_keep=True)) == [("b", "admitted"), ("b", "keep")]
    assert arbiter.memory.reserved_bytes == 120
    assert _told(arbiter.join("c", DEMAND, 0, "", 0)) == [("c", "admitted")]
    assert _told(arbiter.join("d", Demand(10, 0), 0, "", 0, can_keep=True)) == [("d", "admitted")]
    assert [arbiter.view(name, 0).keeps for name in "abcd"] == [True, True, False, False]


def test_who_needs_what_others_keep_is_let_in_when_they_have_given_it_back() -> None:
    arbiter = arbiter_of(memory=120)
    for name in "ab":
        arbiter.join(name, DEMAND, 0, "", 0, can_keep=True)
    assert _told(arbiter.join("c", Demand(20, 60), 0, "", 5, can_keep=True)) == [("a", "free"), ("b", "free")]
    assert arbiter.asked() == {"a": 5, "b": 5}
    assert _told(arbiter.want("a", 6)) == [("a", "turn")]  # which goes on meanwhile
    assert arbiter.freed("b", 7) == [] and arbiter.asked() == {"a": 5}
    assert _told(arbiter.freed("a", 8)) == [("c", "admitted")] and arbiter.memory.reserved_bytes == 100
    assert _told(arbiter.leave("c", 9)) == [("a", "keep"), ("b", "keep")]


def test_nothing_is_kept_beside_who_needs_nobody_knows_how_much() -> None:
    arbiter = arbiter_of(memory=200)
    arbiter.join("a", DEMAND, 0, "", 0, can_keep=True)
    assert _told(arbiter.join("b", Demand(0, 0), 0, "", 1)) == [("b", "admitted"), ("a", "free")]
    assert arbiter.freed("a", 2) == []
    assert _told(arbiter.leave("b", 3)) == [("a", "keep")]
    uncounted = arbiter_of(memory=MOST_BYTES)
    assert _told(uncounted.join("a", DEMAND, 0, "", 0, can_keep=True)) == [("a", "admitted")]


def test_nobody_gives_memory_back_for_who_cannot_be_let_in_anyway() -> None:
    """Or for who has gone; and who has died need not answer."""
    arbiter = arbiter_of(memory=120)
    for name in "ab":
        arbiter.join(name, DEMAND, 0, "", 0, can_keep=True)
    assert arbiter.join("c", Demand(60, 60), 0, "", 1) == [] and arbiter.asked() == {}
    arbiter.leave("c", 2)
    arbiter.join("d", Demand(20, 60), 0, "", 3)
    arbiter.freed("a", 4)
    assert _told(arbiter.leave("b", 5)) == [("d", "admitted")] and arbiter.asked() == {}


class _Crowd:
    """Sessions, each joined, idle, wanting or holding a turn, and what must hold after every word."""

    def __init__(self, policy: Policy) -> None:
        self.arbiter, self.now = Arbiter(Rules(policy, 100, grace_ns=2)), 0
        self.state: dict[str, str] = {}
        self.keeps: set[str] = set()
        self.asked: set[str] = set()

    def hear(self, notices: list[Notice]) -> None:
        for name, told in notices:
            if told is Message.RECALL:
                assert self.state[name] == "holds"
            elif told in (Message.KEEP, Message.FREE):
                assert self.state[name] != "joined" and (told is Message.FREE) == (name in self.keeps)
                self.keeps.add(name)
                self.asked |= {name} if told is Message.FREE else set()
            else:
                self.state[name] = "idle" if told is Message.ADMITTED else "holds"
        assert self.arbiter.is_safe()
        assert sorted(self.arbiter.holders()) == sorted(name for name, at in self.state.items() if at == "holds")
        lanes = [self.arbiter.memory.lane_of(name).number for name in self.arbiter.holders()]
        assert len(set(lanes)) == len(lanes)

    def join(self, demand: Demand) -> None:
        name = str(self.now)
        self.state[name] = "joined"
        can_keep = demand.persistent_bytes % 2 == 0
        self.hear(self.arbiter.join(name, demand, demand.ephemeral_bytes, "", self.now, can_keep=can_keep))

    def step(self, name: str) -> None:
        if self.state[name] == "idle":
            self.state[name] = "wants"
            self.hear(self.arbiter.want(name, self.now))
        elif self.state[name] == "holds":
            self.state[name] = "idle"
            self.hear(self.arbiter.done(name, self.now))

    def leave(self, name: str) -> None:
        del self.state[name]
        self.keeps.discard(name)
        self.asked.discard(name)
        self.hear(self.arbiter.leave(name, self.now))

    def free(self) -> None:
        """All who were asked to give back what they keep do so."""
        for name in sorted(self.asked):
            self.asked.discard(name)
            self.keeps.discard(name)
            self.hear(self.arbiter.freed(name, self.now))

    def look(self) -> None:
        self.hear(self.arbiter.look(self.now))

    def drain(self) -> None:
        """Everybody takes a turn and ends."""
        for _ in range(4 * len(self.state)):
            self.now += 3
            self.look()
            for name in sorted(self.state):
                if self.state[name] != "holds":
                    self.step(name)
                if self.state[name] == "holds":
                    self.step(name)
                    self.leave(name)


@pytest.mark.parametrize("policy", Policy)
@given(drawn=actions)
def test_whatever_sessions_do_memory_is_safe_and_everybody_gets_turns(
    policy: Policy, drawn: list[tuple[str, int, int, int]]
) -> None:
    """Sessions that join, take their turns, idle, keep memory, give it back or not, and die; at the end those who are
    left all get their turns."""
    crowd = _Crowd(policy)
    for what, persistent, ephemeral, which in drawn:
        crowd.now += 1
        names = sorted(crowd.state)
        if what == "join":
            crowd.join(Demand(persistent, ephemeral))
        elif what == "wait":
            crowd.now += which
            crowd.look()
        elif what == "free":
            crowd.free()
        elif names and what == "step":
            crowd.step(names[which % len(names)])
        elif names:
            crowd.leave(names[which % len(names)])
    crowd.drain()

    assert not crowd.state and not crowd.arbiter.memory.demands
