"""The turns of one lane: who has the turn, until when, and who is next.

Ranks and charges are the functions that the simulator uses (:mod:`slurm_hadar.sharing.turns`). What only real jobs
have: between two iterations a job needs the CPU for a while. If the one that ranks first has not asked yet, the lane
waits for it for ``grace_ns``, lest every short pause cost it its rank; who does not ask by then is *away* and is not
waited for until it asks again. Who comes back is charged as the least of those who stayed: time away is not saved up.

**A turn stays with its holder until somebody else asks.** Then it is recalled, and given back at the holder's next
boundary. Where equals take turns and a hand-over is dear, it is recalled only after as long as that is worth and when
the next turn would be another's, or when its holder rests, which is looked for meanwhile. One that is between two
iterations can be taken back at once. What the holder did while nobody asked it tells itself (``Progress``); from
the recall on the broker's clock counts. Nothing is won by telling too little: nobody else was there, and who comes back
starts level with the holder.

**A session may give way**: with the share s of the turns, below a half, it is charged (1 - s) / s times what it used,
which leaves it s beside one other; with 0 it has a turn only where nobody else wants one. Turns can be given up so,
never taken: more than its equal share nobody gets but from who gives way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.messages import NOTHING, Progress, State
from slurm_hadar.sharing.broker.settings import Rules
from slurm_hadar.sharing.turns import Policy, Standing, rank, stride

__all__ = ["EQUAL", "LaneTurns", "Member"]

#: The share of the turns beside one other that a session has which does not give way.
EQUAL = 0.5
#: A smaller share is none: what one turn would cost its session then is more than it could make up for.
_LEAST = 0.001
#: Where nobody is to be preferred, turns are so long that hand-overs cost no more than this part of the GPU's time; but
#: others wait no longer than this for that.
_DEAR, _PATIENT_NS = 20, 1_000_000_000
_EQUALS = frozenset({Policy.FAIR, Policy.RR})


@dataclass(slots=True)
class Member:
    """A session of a lane."""

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

    def hurries(self, holder: Member) -> bool:
        """Whether it waits for its turn and would lose more by a holder's long turn than hand-overs cost: the holder
        gives way, or it needs the GPU for less than half of its time, as it says."""
        return self.wants and (self.share > holder.share or self.seen.away_ns > self.seen.used_ns)


@dataclass(slots=True)
class LaneTurns:
    """Who has the turn, when it got it, and since when it is not charged for it; or since when nobody has. Moments are
    arguments, in nanoseconds. ChannelError is raised for what a session may not ask, and changes nothing."""

    rules: Rules
    number: int
    since_ns: int
    members: dict[str, Member] = field(default_factory=dict)
    holder: str | None = None
    recalled_ns: int | None = None
    _given_ns: int = 0
    _charged_ns: int = 0  # of it
    _iterated: bool = False  # once at least
    _rests: bool = False  # between two of them
    _rested_ns: int = 0  # since when
    _looked_ns: int = 0

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the turn."""
        return any(member.wants for member in self.members.values())

    def join(self, name: str, standing: Standing) -> None:
        """A session that was let in begins with the least that any of them was charged."""
        standing.passed = min((m.standing.passed for m in self.members.values()), default=0)
        self.members[name] = Member(standing)

    def leave(self, name: str, now_ns: int) -> None:
        """A session is gone; its turn, if it has it, is nobody's."""
        del self.members[name]
        if self.holder == name:
            self.free(now_ns)

    def want(self, name: str, told: Progress) -> None:
        """A session asks for the turn; what it has ``told`` until now is settled."""
        member = self.members[name]
        if member.wants or self.holder == name:
            raise ChannelError("has asked for a turn already")
        if member.away:
            _catch_up(member, [other for other in self.members.values() if not other.away])
        member.wants, member.away, member.taken_back, member.seen = True, False, False, told

    def done(self, name: str, told: Progress, now_ns: int) -> bool:
        """A session says that its turn is over; whether it had it still. However little it has ``told``, a turn was an
        iteration."""
        member = self.members[name]
        if member.taken_back:
            member.taken_back = False
            return False
        if self.holder != name:
            raise ChannelError("has no turn that could be over")
        iterations = max(told.iterations - member.seen.iterations, 0 if self._iterated else 1)
        self._charge(member, max(now_ns - self.since_ns, told.used_ns - member.seen.used_ns), iterations, now_ns)
        self.free(now_ns)
        return True

    def account(self, name: str, told: Progress, now_ns: int) -> None:
        """What the holder of a turn that was not recalled has done, as it told it no later than now."""
        member = self.members[name]
        iterations = max(0, told.iterations - member.seen.iterations)
        if not iterations and not self._iterated:  # it is in its first
            return
        used_ns = told.used_ns - member.seen.used_ns
        member.seen = told
        if iterations or used_ns > 0:  # its numbers may have been read while it wrote them
            self._iterated = True
            self._charge(member, used_ns, iterations, now_ns)
            for other in self.members.values():  # there was a boundary at which they did not ask
                other.away = other.away or not (other.wants or other is member)
        under_way = told.began_ns > told.ended_ns
        self._rests, self._rested_ns = not under_way, told.ended_ns
        self.since_ns = min(now_ns, max(self.since_ns, told.began_ns if under_way else now_ns))

    def take_back(self, name: str, told: Progress, now_ns: int) -> None:
        """The recalled turn of a session between two iterations, which can begin none before it is given the next."""
        since_ns = self.since_ns
        self.account(name, told, now_ns)
        self.members[name].taken_back = True
        self.free(min(now_ns, max(since_ns, told.ended_ns)))

    def free(self, since_ns: int) -> None:
        """Nobody has the turn since then."""
        self.holder, self.since_ns = None, since_ns

    def has_iterated(self, name: str, told: Progress) -> bool:
        """Whether a session with the turn has ended an iteration since it was given it."""
        return self._iterated or told.iterations > self.members[name].seen.iterations

    def give_way(self, name: str, share: float) -> None:
        """A session has this share of the turns beside another from now on; less than a half."""
        self.members[name].share = share if share >= _LEAST else 0.0

    def level(self, name: str) -> None:
        """It gives way no more, and goes on where the others are."""
        member = self.members[name]
        member.share = EQUAL
        _catch_up(member, [other for other in self.members.values() if other is not member])

    def look(self, now_ns: int) -> None:
        """Time has passed, and :meth:`account` has told what the holder did in it."""
        self._looked_ns = now_ns

    def hand_over(self, now_ns: int) -> str | None:
        """Give the turn, where nobody has it, to who ranks first and has asked; who that is."""
        if self.holder is not None or not self.wanted:
            return None
        if now_ns >= self.since_ns + self.rules.grace_ns:
            for member in self.members.values():
                member.away = not member.wants
        present = {name: member for name, member in self.members.items() if not member.away}
        first = min(present, key=lambda name: present[name].order(self.rules.policy))
        if not present[first].wants:
            return None
        present[first].wants = False
        self.holder, self.since_ns, self.recalled_ns = first, now_ns, None
        self._given_ns, self._charged_ns, self._iterated, self._rests = now_ns, 0, False, False
        return first

    def is_recall_due(self, now_ns: int) -> bool:
        """Whether the holder's turn is to be recalled for others who want it."""
        return self.wanted and now_ns >= (recall_ns := self._recall_ns()) and not self._goes_on(recall_ns, now_ns)

    def deadline_ns(self) -> int | None:
        """When time alone makes a difference here: :meth:`hand_over` or :meth:`is_recall_due` may say another thing.
        None: never."""
        if not self.wanted:
            return None
        if self.holder is None:
            return self.since_ns + self.rules.grace_ns
        return self._next_look_ns() if self.recalled_ns is None else None

    def state(self, name: str) -> State:
        """What a session is doing."""
        member = self.members[name]
        if self.holder == name:
            return State.KEEPS if self._rests else State.TURN
        return State.WANTS if member.wants else State.AWAY if member.away else State.BETWEEN

    def _charge(self, member: Member, told_ns: int, iterations: int, now_ns: int) -> None:
        """No more than its turn has lasted, whatever it tells."""
        used_ns = max(0, min(told_ns, now_ns - self._given_ns - self._charged_ns))
        self._charged_ns += used_ns
        member.turns += iterations
        member.used_ns += used_ns
        group = member.standing.group
        in_group = sum(other.standing.group == group for other in self.members.values())
        pieces = max(1, iterations)
        charge = pieces * stride(self.rules.policy, used_ns // pieces, member.standing, in_group)
        if 0.0 < member.share < EQUAL:
            charge = round(charge * (1.0 - member.share) / member.share)
        member.standing.passed += charge
        member.standing.left_ns = max(0, member.standing.left_ns - used_ns)

    def _recall_ns(self) -> int:
        """When the turn is recalled if others want it, as far as is known."""
        assert self.holder is not None
        holder = self.members[self.holder]
        if self.rules.policy not in _EQUALS or any(m.hurries(holder) for m in self.members.values()):
            return self._given_ns
        worth_ns = self._given_ns + min(_PATIENT_NS, _DEAR * max(0, holder.seen.switch_ns))
        return min(worth_ns, self._rested_ns + self.rules.grace_ns) if self._rests else worth_ns

    def _goes_on(self, recall_ns: int, now_ns: int) -> bool:
        """Whether the holder of a turn that has lasted as long as its hand-over is worth, and would be recalled, would
        be given the next one, too: it is behind those who wait. It is not believed for longer than a second."""
        assert self.holder is not None
        holder = self.members[self.holder]
        long = recall_ns > self._given_ns and not self._rests
        if not long or now_ns >= self._given_ns + _PATIENT_NS:
            return False
        charged = stride(self.rules.policy, now_ns - self.since_ns, holder.standing, 1)
        then = replace(holder.standing, passed=holder.standing.passed + charged)
        return rank(self.rules.policy, then) < min(
            rank(self.rules.policy, member.standing) for member in self.members.values() if member.wants
        )

    def _next_look_ns(self) -> int:
        """When to see whether the turn, which others want, is to be recalled."""
        recall_ns, again_ns = self._recall_ns(), self._looked_ns + self.rules.grace_ns
        return again_ns if self._goes_on(recall_ns, recall_ns) else min(recall_ns, again_ns)


def _catch_up(member: Member, others: Sequence[Member]) -> None:
    """It was charged no less than the least of the others from now on."""
    least = min((other.standing.passed for other in others), default=0)
    member.standing.passed = max(member.standing.passed, least)
