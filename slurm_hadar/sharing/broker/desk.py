"""What a broker decides: who is let in, and who has the turn. No clock and no socket: moments are arguments, in
nanoseconds, and what is to be told is returned.

Turns, lanes and entry are the functions that the simulator uses. What only real jobs have: between two iterations a job
needs the CPU for a while. If the one that ranks first has not asked yet, the lane waits for it for ``grace_ns``, lest
every short pause cost it its rank; who does not ask by then is *away* and is not waited for until it asks again. Who
comes back is charged as the least of those who stayed: time away is not saved up.

**A turn stays with its holder until somebody else asks.** Then it is recalled, and given back at the holder's next
boundary. Where equals take turns and a hand-over is dear, it is recalled only after as long as that is worth and when
the next turn would be another's, or when its holder rests, which is looked for meanwhile. One that is between two
iterations can be taken back at once. What the holder did while nobody asked it tells itself (``Progress``); from
the recall on the broker's clock counts. Nothing is won by telling too little: nobody else was there, and who comes back
starts level with the holder.

**A session may give way**, for a time that it is told: with the share s of the turns, below a half, it is charged
(1 - s) / s times what it used, which leaves it s beside one other; with 0 it has a turn only where nobody else wants
one. Turns can be given up so, never taken: more than its equal share nobody gets but from who gives way. When the time
is over it goes on level with the others; what it has given up is not made up for.

**Memory is handed on only where somebody needs it.** Where the ephemeral memory of all fits beside each other, those
that can be asked for it are told to keep it from turn to turn: to give gigabytes back and take them anew costs more
than the rest of a hand-over. Who would be let in but for that waits until they have given it back; one that does not
answer keeps nobody out but those who need its memory.

**After another broker** (:meth:`Desk.expect`) its sessions come back one by one, at the end of their iterations, and
keep their memory until then. Who had been let in is let in again at once. Nobody else is before all are back or gone,
or a time is over; from then on what those have who are still absent counts as taken, all of it, and others are let in
beside that. Who had waited comes back to its place among those who wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.seats import NOTHING, Note, Progress, Seat, State, Told
from slurm_hadar.sharing.entry import Applicant, Entry, come_back, let_in
from slurm_hadar.sharing.lanes import Demand, GpuMemory, at_boundary, is_safe, keep, keep_no_more, release
from slurm_hadar.sharing.sizes import MOST_BYTES
from slurm_hadar.sharing.turns import EqualShareClock, Policy, Standing, rank, stride

__all__ = ["EQUAL", "Desk", "Rules"]


#: The share of the turns beside one other that a session has which does not give way.
EQUAL = 0.5
#: Where nobody is to be preferred, turns are so long that hand-overs cost no more than this part of the GPU's time; but
#: others wait no longer than this for that.
_DEAR, _PATIENT_NS = 20, 1_000_000_000
_EQUALS = frozenset({Policy.FAIR, Policy.RR})
#: A smaller share is none: what one turn would cost its session then is more than it could make up for.
LEAST = 0.001


@dataclass(frozen=True)
class Rules:
    """How a GPU is shared. ``weights`` are those of classes under policy ``priority``; others have 1."""

    policy: Policy
    memory_bytes: int
    weights: Mapping[str, int] = field(default_factory=dict)
    grace_ns: int = 2_000_000


class _Former(NamedTuple):
    """A session of the broker before that has not come back."""

    demand: Demand
    admitted: bool
    order: int


@dataclass(slots=True)
class _Member:
    standing: Standing
    wants: bool = False
    away: bool = False
    taken_back: bool = False  # its turn, while it may not have heard of it
    turns: int = 0
    used_ns: int = 0
    seen: Progress = NOTHING  # what it has been charged for
    share: float = EQUAL  # of the turns: less where it gives way

    def order(self, policy: Policy) -> tuple[bool, int, int]:
        """The least has the next turn."""
        return (self.share <= 0.0, *rank(policy, self.standing))

    def hurries(self, holder: _Member) -> bool:
        """Whether it waits for its turn and would lose more by a holder's long turn than hand-overs cost: the holder
        gives way, or it needs the GPU for less than half of its time, as it says."""
        return self.wants and (self.share > holder.share or self.seen.away_ns > self.seen.used_ns)


@dataclass(slots=True)
class _Turns:
    """Of one lane: who has the turn, when it got it, and since when it is not charged for it; or since when nobody
    has."""

    members: dict[str, _Member] = field(default_factory=dict)
    holder: str | None = None
    given_ns: int = 0
    charged_ns: int = 0  # of it
    since_ns: int = 0
    kept: bool = False  # for more than one iteration
    rests: bool = False  # between two of them
    rested_ns: int = 0  # since when
    looked_ns: int = 0
    recalled_ns: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the turn."""
        return any(member.wants for member in self.members.values())


def _level(lane: _Turns, member: _Member) -> None:
    """It gives way no more, and goes on where the others are."""
    others = [m.standing.passed for m in lane.members.values() if m is not member]
    member.share = EQUAL
    member.standing.passed = max([member.standing.passed, *([min(others)] if others else [])])


class Desk:
    """The state of one GPU. Every method returns whom to tell what; ChannelError is raised for what a session may not
    ask, and changes nothing."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._memory = GpuMemory(rules.memory_bytes)
        self._lanes: dict[int, _Turns] = {}
        self._waiting: list[Applicant] = []
        self._equal_shares = EqualShareClock()
        self._joined = 0
        self._formers: dict[str, _Former] = {}
        self._hold_ns = 0  # until when nobody is let in but them
        self._giving_way: dict[str, int] = {}  # until when
        self._can_keep: set[str] = set()  # ephemeral memory
        self._asked_ns: dict[str, int] = {}  # who was asked for it and has not answered
        self._tight: GpuMemory | None = None  # without room for what could be kept, as was found at the last turn

    @property
    def memory(self) -> GpuMemory:
        """As it is reserved for those who are there."""
        return self._memory

    @property
    def absent_bytes(self) -> int:
        """Of those whom the broker before had let in and who are not back: all that they have a right to."""
        return sum(former.demand.alone_bytes for former in self._formers.values() if former.admitted)

    def expect(self, name: str, demand: Demand, admitted: bool, until_ns: int) -> None:
        """A session of the broker before may come back (:meth:`join`), or its process end (:meth:`leave`). They are
        named in the order in which they came to that one, before anybody joins. Until then, or this moment, nobody else
        is let in."""
        self._formers[name] = _Former(demand, admitted, self._joined)
        self._joined += 1
        self._hold_ns = until_ns

    def in_order(self) -> list[str]:
        """Who has joined, or may come back, in the order in which they came."""
        orders = {applicant.name: applicant.standing.order for applicant in self._waiting}
        orders |= {name: former.order for name, former in self._formers.items()}
        for lane in self._lanes.values():
            orders |= {name: member.standing.order for name, member in lane.members.items()}
        return sorted(orders, key=lambda name: orders[name])

    def join(
        self,
        name: str,
        demand: Demand,
        total_ns: int,
        group: str,
        now_ns: int,
        *,
        can_keep: bool = False,
        back: str | None = None,
    ) -> list[Note]:
        """A session asks to be let in; it is told ``ADMITTED``, now or later. One that ``can_keep`` its ephemeral
        memory may be told ``KEEP`` and ``FREE`` at any time, and answers the latter (:meth:`freed`). ``back``: which of
        those it is that were expected."""
        if demand.alone_bytes > self._rules.memory_bytes:
            raise ChannelError(
                f"{demand.alone_bytes} bytes are needed, and the GPU has {self._rules.memory_bytes} for jobs"
            )
        if name in self._memory.demands or any(applicant.name == name for applicant in self._waiting):
            raise ChannelError("has joined already")
        weight = self._rules.weights.get(group, 1)
        tag = self._equal_shares.arrive(now_ns, total_ns)
        former = self._formers.pop(back, None) if back is not None else None
        order = self._joined if former is None else former.order
        self._joined += former is None
        applicant = Applicant(name, demand, Standing(order, total_ns, tag, group=group, weight=weight))
        if can_keep and demand.ephemeral_bytes:
            self._can_keep.add(name)
        self._tight = None
        if former is None or not former.admitted:
            self._waiting.append(applicant)
            return self._settle(now_ns)
        self._memory = come_back(self._rules.policy, self._memory, applicant)
        return [self._seated(applicant, now_ns), *self._settle(now_ns)]

    def freed(self, name: str, now_ns: int) -> list[Note]:
        """A session has given back what it kept, and gives its ephemeral memory back with each turn."""
        self._member(name)
        self._memory = keep_no_more(self._memory, [name])
        self._asked_ns.pop(name, None)
        return self._settle(now_ns)

    def want(self, name: str, now_ns: int, told: Progress = NOTHING) -> list[Note]:
        """A session asks for a turn; it is told ``TURN``, now or later. What it has ``told`` until now is settled."""
        lane, member = self._member(name)
        if member.wants or lane.holder == name:
            raise ChannelError("has asked for a turn already")
        if member.away:
            others = [m.standing.passed for m in lane.members.values() if not m.away]
            member.standing.passed = max([member.standing.passed, *([min(others)] if others else [])])
        member.wants, member.away, member.taken_back, member.seen = True, False, False, told
        return self._settle(now_ns)

    def done(self, name: str, now_ns: int, told: Progress = NOTHING) -> list[Note]:
        """A session's turn is over: a boundary of its lane. However little it has ``told``, a turn was an iteration."""
        lane, member = self._member(name)
        if member.taken_back:
            member.taken_back = False
            return []
        if lane.holder != name:
            raise ChannelError("has no turn that could be over")
        iterations = max(told.iterations - member.seen.iterations, 0 if lane.kept else 1)
        self._charge(lane, member, max(now_ns - lane.since_ns, told.used_ns - member.seen.used_ns), iterations, now_ns)
        return self._boundary(name, lane, now_ns, now_ns)

    def kept(self, name: str, told: Progress, now_ns: int) -> None:
        """What the holder of a turn that was not recalled has done, as it told it no later than now."""
        lane, member = self._member(name)
        iterations = max(0, told.iterations - member.seen.iterations)
        if not iterations and not lane.kept:  # it is in its first
            return
        used_ns = told.used_ns - member.seen.used_ns
        member.seen = told
        if iterations or used_ns > 0:  # its numbers may have been read while it wrote them
            lane.kept = True
            self._charge(lane, member, used_ns, iterations, now_ns)
            for other in lane.members.values():  # there was a boundary at which they did not ask
                other.away = other.away or not (other.wants or other is member)
        under_way = told.began_ns > told.ended_ns
        lane.rests, lane.rested_ns = not under_way, told.ended_ns
        lane.since_ns = min(now_ns, max(lane.since_ns, told.began_ns if under_way else now_ns))

    def take_back(self, name: str, told: Progress, now_ns: int) -> list[Note]:
        """The recalled turn of a session between two iterations, which can begin none before it is given the next."""
        lane, member = self._member(name)
        since_ns = lane.since_ns
        self.kept(name, told, now_ns)
        member.taken_back = True
        return self._boundary(name, lane, min(now_ns, max(since_ns, told.ended_ns)), now_ns)

    def _boundary(self, name: str, lane: _Turns, free_ns: int, now_ns: int) -> list[Note]:
        lane.holder, lane.since_ns = None, free_ns
        self._memory = at_boundary(self._memory, self._memory.lane_of(name).number)
        return self._settle(now_ns)

    def leave(self, name: str, now_ns: int) -> list[Note]:
        """A session is gone, whatever it was doing; one that is not there is gone already."""
        self._waiting = [applicant for applicant in self._waiting if applicant.name != name]
        if self._formers.pop(name, None) is not None:
            self._tight = None
        self._giving_way.pop(name, None)
        self._can_keep.discard(name)
        self._asked_ns.pop(name, None)
        if name in self._memory.demands:
            number = self._memory.lane_of(name).number
            lane = self._lanes[number]
            if lane.holder == name:
                lane.holder, lane.since_ns = None, now_ns
            del lane.members[name]
            self._memory = release(self._memory, name)
            if not lane.members:
                del self._lanes[number]
            elif lane.holder is None:
                self._memory = at_boundary(self._memory, number)
        return self._settle(now_ns)

    def give_way(self, name: str, share: float, until_ns: int, now_ns: int) -> list[Note]:
        """A session has this share of the turns beside another until then, 0 to a half; a half ends it."""
        lane, member = self._member(name)
        if share < EQUAL:
            member.share, self._giving_way[name] = share if share >= LEAST else 0.0, until_ns
        elif self._giving_way.pop(name, None) is not None:
            _level(lane, member)
        return self._settle(now_ns)

    def look(self, now_ns: int) -> list[Note]:
        """What the passing of time has brought; to be called at :meth:`deadline_ns`, after :meth:`kept`."""
        for lane in self._lanes.values():
            lane.looked_ns = now_ns
        return self._settle(now_ns)

    def deadline_ns(self) -> int | None:
        """When :meth:`look` has something to say if nobody asks anything."""
        graces = [
            lane.since_ns + self._rules.grace_ns for lane in self._lanes.values() if lane.holder is None and lane.wanted
        ]
        recalls = [
            self._next_look_ns(lane)
            for lane in self._lanes.values()
            if lane.holder is not None and lane.recalled_ns is None and lane.wanted
        ]
        hold = [self._hold_ns] if self._hold_ns and self._formers and self._waiting else []
        return min([*graces, *recalls, *hold, *self._giving_way.values()], default=None)

    def holders(self) -> dict[str, int]:
        """Who has a turn, and since when it is not charged for it."""
        return {lane.holder: lane.since_ns for lane in self._lanes.values() if lane.holder is not None}

    def keepers(self) -> list[str]:
        """Who has a turn that nobody waits for, as far as was said."""
        return [lane.holder for lane in self._lanes.values() if lane.holder is not None and lane.recalled_ns is None]

    def recalled(self) -> dict[str, int]:
        """Whose turn somebody waits for, and since when."""
        return {
            lane.holder: lane.recalled_ns
            for lane in self._lanes.values()
            if lane.holder is not None and lane.recalled_ns is not None
        }

    def asked(self) -> dict[str, int]:
        """Who was asked for the memory that it keeps and has not answered, and since when."""
        return dict(self._asked_ns)

    def keeps(self, name: str, told: Progress) -> bool:
        """Whether a session with the turn has ended an iteration since it was given it: who has just been given it
        may not have heard of it, and has a right to one."""
        lane, member = self._member(name)
        return lane.kept or told.iterations > member.seen.iterations

    def seat(self, name: str, now_ns: int) -> Seat | None:
        """Where a session stands; None for one that has not joined."""
        for applicant in self._waiting:
            if applicant.name == name:
                return Seat(None, State.WAITING, applicant.demand, 0, 0)
        if (former := self._formers.get(name)) is not None and former.admitted:
            return Seat(None, State.ABSENT, former.demand, 0, 0)
        if name not in self._memory.demands:
            return None
        lane, member = self._member(name)
        under_way = lane.holder == name and not lane.rests
        state = (
            State.TURN if under_way
            else State.KEEPS if lane.holder == name
            else State.WANTS if member.wants
            else State.AWAY if member.away
            else State.BETWEEN
        )  # fmt: skip
        number = self._memory.lane_of(name).number
        used_ns = member.used_ns + under_way * (now_ns - lane.since_ns)
        gives_way = member.share if member.share < EQUAL else None
        keeps = name in self._memory.keepers
        return Seat(number, state, self._memory.demands[name], member.turns + under_way, used_ns, gives_way, keeps)

    def is_in(self, name: str) -> bool:
        """Whether a session has joined and been let in."""
        return name in self._memory.demands

    def is_safe(self) -> bool:
        """Whether memory is promised once only."""
        return is_safe(self._memory)

    def _member(self, name: str) -> tuple[_Turns, _Member]:
        if name not in self._memory.demands:
            raise ChannelError("has not been admitted")
        lane = self._lanes[self._memory.lane_of(name).number]
        return lane, lane.members[name]

    def _charge(self, lane: _Turns, member: _Member, told_ns: int, iterations: int, now_ns: int) -> None:
        """No more than its turn has lasted, whatever it tells."""
        used_ns = max(0, min(told_ns, now_ns - lane.given_ns - lane.charged_ns))
        lane.charged_ns += used_ns
        member.turns += iterations
        member.used_ns += used_ns
        group = member.standing.group
        in_group = sum(other.standing.group == group for other in lane.members.values())
        pieces = max(1, iterations)
        charge = pieces * stride(self._rules.policy, used_ns // pieces, member.standing, in_group)
        if 0.0 < member.share < EQUAL:
            charge = round(charge * (1.0 - member.share) / member.share)
        member.standing.passed += charge
        member.standing.left_ns = max(0, member.standing.left_ns - used_ns)

    def _settle(self, now_ns: int) -> list[Note]:
        for name in [name for name, until_ns in self._giving_way.items() if now_ns >= until_ns]:
            del self._giving_way[name]
            _level(*self._member(name))
        notes = self._enter(now_ns) if self._waiting else []
        notes += self._keep(now_ns)
        for number, lane in self._lanes.items():
            notes.extend(self._hand_over(lane, now_ns))
            notes.extend(self._recall(number, lane, now_ns))
        return notes

    def _enter(self, now_ns: int) -> list[Note]:
        if now_ns >= self._hold_ns or not self._formers:
            self._hold_ns = 0
        if self._hold_ns:
            return []
        self._memory, entered, self._waiting = self._let_in(self._memory)
        return [self._seated(applicant, now_ns) for applicant in entered]

    def _seated(self, applicant: Applicant, now_ns: int) -> Note:
        lane = self._lanes.setdefault(self._memory.lane_of(applicant.name).number, _Turns(since_ns=now_ns))
        applicant.standing.passed = min((m.standing.passed for m in lane.members.values()), default=0)
        lane.members[applicant.name] = _Member(applicant.standing)
        return Note(applicant.name, Told.ADMITTED)

    def _let_in(self, memory: GpuMemory) -> Entry:
        inside = [member.standing for lane in self._lanes.values() for member in lane.members.values()]
        entry = let_in(self._rules.policy, self._beside_absent(memory), self._waiting, inside)
        return entry._replace(memory=self._in_all(entry.memory) if entry.entered else memory)

    def _beside_absent(self, memory: GpuMemory) -> GpuMemory:
        """Without what those have who are absent: they may be in the midst of an iteration."""
        return replace(memory, capacity_bytes=self._rules.memory_bytes - self.absent_bytes)

    def _in_all(self, memory: GpuMemory) -> GpuMemory:
        return replace(memory, capacity_bytes=self._rules.memory_bytes)

    def _keep(self, now_ns: int) -> list[Note]:
        """Have those keep their memory whom that harms nobody, or give it back to who waits for it, and where somebody
        needs nobody knows how much."""
        if not self._can_keep:
            return []
        memory = self._memory
        demands = [*memory.demands.values(), *(former.demand for former in self._formers.values() if former.admitted)]
        known = memory.capacity_bytes < MOST_BYTES and all(demand.alone_bytes for demand in demands)
        if known and not self._waiting:
            new = self._can_keep - memory.keepers
            if memory is self._tight or not new:
                return []
            if (kept := keep(self._beside_absent(memory), new)) is None:
                self._tight = memory
                return []
            self._memory = self._in_all(kept)
            return [Note(name, Told.KEEP) for name in sorted(new)]
        unasked = memory.keepers - self._asked_ns.keys()
        if not unasked or (known and not self._let_in(keep_no_more(memory, memory.keepers)).entered):
            return []
        self._asked_ns.update(dict.fromkeys(unasked, now_ns))
        return [Note(name, Told.FREE) for name in sorted(unasked)]

    def _hand_over(self, lane: _Turns, now_ns: int) -> list[Note]:
        if lane.holder is not None or not lane.wanted:
            return []
        if now_ns >= lane.since_ns + self._rules.grace_ns:
            for member in lane.members.values():
                member.away = not member.wants
        present = {name: member for name, member in lane.members.items() if not member.away}
        first = min(present, key=lambda name: present[name].order(self._rules.policy))
        if not present[first].wants:
            return []
        present[first].wants = False
        lane.holder, lane.since_ns, lane.kept, lane.rests, lane.recalled_ns = first, now_ns, False, False, None
        lane.given_ns, lane.charged_ns = now_ns, 0
        return [Note(first, Told.TURN)]

    def _recall(self, number: int, lane: _Turns, now_ns: int) -> list[Note]:
        """For who wants the turn, or waits for memory that the lane gives back at its boundary."""
        if lane.holder is None or lane.recalled_ns is not None:
            return []
        shrinks = self._waiting and at_boundary(self._memory, number) != self._memory
        if not shrinks and (
            not lane.wanted or now_ns < (recall_ns := self._recall_ns(lane)) or self._goes_on(lane, recall_ns, now_ns)
        ):
            return []
        lane.recalled_ns = now_ns
        return [Note(lane.holder, Told.RECALL)]

    def _recall_ns(self, lane: _Turns) -> int:
        """When the turn of a lane is recalled if others want it, as far as is known."""
        assert lane.holder is not None
        holder = lane.members[lane.holder]
        if self._rules.policy not in _EQUALS or any(m.hurries(holder) for m in lane.members.values()):
            return lane.given_ns
        worth_ns = lane.given_ns + min(_PATIENT_NS, _DEAR * max(0, holder.seen.switch_ns))
        return min(worth_ns, lane.rested_ns + self._rules.grace_ns) if lane.rests else worth_ns

    def _goes_on(self, lane: _Turns, recall_ns: int, now_ns: int) -> bool:
        """Whether the holder of a turn that has lasted as long as its hand-over is worth, and would be recalled, would
        be given the next one, too: it is behind those who wait. It is not believed for longer than a second."""
        assert lane.holder is not None
        holder = lane.members[lane.holder]
        long = recall_ns > lane.given_ns and not lane.rests
        if not long or now_ns >= lane.given_ns + _PATIENT_NS:
            return False
        charged = stride(self._rules.policy, now_ns - lane.since_ns, holder.standing, 1)
        then = replace(holder.standing, passed=holder.standing.passed + charged)
        return rank(self._rules.policy, then) < min(
            rank(self._rules.policy, member.standing) for member in lane.members.values() if member.wants
        )

    def _next_look_ns(self, lane: _Turns) -> int:
        """When to see whether the turn of a lane that others want is to be recalled."""
        recall_ns, again_ns = self._recall_ns(lane), lane.looked_ns + self._rules.grace_ns
        return again_ns if self._goes_on(lane, recall_ns, recall_ns) else min(recall_ns, again_ns)
