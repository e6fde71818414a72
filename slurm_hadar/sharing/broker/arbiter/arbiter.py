"""Admission and the turns of all lanes together. No clock and no socket: moments are arguments, in nanoseconds, and
what is to be told is returned.
"""

from __future__ import annotations

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.arbiter.admission import Admission
from slurm_hadar.sharing.broker.arbiter.lane import EQUAL, LaneTurns
from slurm_hadar.sharing.broker.messages import NOTHING, Message, Notice, Progress, SessionView, State
from slurm_hadar.sharing.broker.settings import Rules
from slurm_hadar.sharing.entry import Applicant
from slurm_hadar.sharing.lanes import Demand, GpuMemory, is_safe

__all__ = ["Arbiter"]


class Arbiter:
    """The state of one GPU. Every method returns whom to tell what; ChannelError is raised for what a session may not
    ask, and changes nothing."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._admission = Admission(rules)
        self._lanes: dict[int, LaneTurns] = {}
        self._lane_of: dict[str, LaneTurns] = {}  # each session's that is in
        self._giving_way: dict[str, int] = {}  # until when

    @property
    def memory(self) -> GpuMemory:
        """As it is reserved for those who are there."""
        return self._admission.memory

    @property
    def absent_bytes(self) -> int:
        """Of those whom the broker before had let in and who are not back: all that they have a right to."""
        return self._admission.absent_bytes

    def expect(self, name: str, demand: Demand, admitted: bool, until_ns: int) -> None:
        """A session of the broker before may come back (:meth:`join`), or its process end (:meth:`leave`). They are
        named in the order in which they came to that one, before anybody joins. Until then, or this moment, nobody else
        is let in."""
        self._admission.expect(name, demand, admitted, until_ns)

    def in_order(self) -> list[str]:
        """Who has joined, or may come back, in the order in which they came."""
        return self._admission.in_order()

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
    ) -> list[Notice]:
        """A session asks to be let in; it is told ``ADMITTED``, now or later. One that ``can_keep`` its ephemeral
        memory may be told ``KEEP`` and ``FREE`` at any time, and answers the latter (:meth:`freed`). ``back``: which of
        those it is that were expected."""
        at_once = self._admission.join(name, demand, total_ns, group, now_ns, can_keep, back)
        entered = [self._entered(at_once, now_ns)] if at_once is not None else []
        return entered + self._settle(now_ns)

    def freed(self, name: str, now_ns: int) -> list[Notice]:
        """A session has given back what it kept, and gives its ephemeral memory back with each turn."""
        self._its_lane(name)
        self._admission.freed(name)
        return self._settle(now_ns)

    def want(self, name: str, now_ns: int, told: Progress = NOTHING) -> list[Notice]:
        """A session asks for a turn; it is told ``TURN``, now or later. What it has ``told`` until now is settled."""
        self._its_lane(name).want(name, told)
        return self._settle(now_ns)

    def done(self, name: str, now_ns: int, told: Progress = NOTHING) -> list[Notice]:
        """A session's turn is over: a boundary of its lane. However little it has ``told``, a turn was an iteration."""
        lane = self._its_lane(name)
        return self._boundary(lane, now_ns) if lane.done(name, told, now_ns) else []

    def account(self, name: str, told: Progress, now_ns: int) -> None:
        """What the holder of a turn that was not recalled has done, as it told it no later than now."""
        self._its_lane(name).account(name, told, now_ns)

    def take_back(self, name: str, told: Progress, now_ns: int) -> list[Notice]:
        """The recalled turn of a session between two iterations, which can begin none before it is given the next."""
        lane = self._its_lane(name)
        lane.take_back(name, told, now_ns)
        return self._boundary(lane, now_ns)

    def leave(self, name: str, now_ns: int) -> list[Notice]:
        """A session is gone, whatever it was doing; one that is not there is gone already."""
        self._giving_way.pop(name, None)
        self._admission.leave(name)
        if (lane := self._lane_of.pop(name, None)) is not None:
            lane.leave(name, now_ns)
            if not lane.members:
                del self._lanes[lane.number]
            elif lane.holder is None:
                self._admission.at_boundary(lane.number)
        return self._settle(now_ns)

    def give_way(self, name: str, share: float, until_ns: int, now_ns: int) -> list[Notice]:
        """A session has this share of the turns beside another until then, 0 to a half; a half ends it. Then it goes on
        level with the others; what it has given up is not made up for."""
        lane = self._its_lane(name)
        if share < EQUAL:
            lane.give_way(name, share)
            self._giving_way[name] = until_ns
        elif self._giving_way.pop(name, None) is not None:
            lane.level(name)
        return self._settle(now_ns)

    def look(self, now_ns: int) -> list[Notice]:
        """What the passing of time has brought; to be called at :meth:`deadline_ns`, after :meth:`account`."""
        for lane in self._lanes.values():
            lane.look(now_ns)
        return self._settle(now_ns)

    def deadline_ns(self) -> int | None:
        """When :meth:`look` has something to say if nobody asks anything."""
        moments = [lane.deadline_ns() for lane in self._lanes.values()]
        moments += [self._admission.deadline_ns(), *self._giving_way.values()]
        return min((moment for moment in moments if moment is not None), default=None)

    def holders(self) -> dict[str, int]:
        """Who has a turn, and since when it is not charged for it."""
        return {lane.holder: lane.since_ns for lane in self._lanes.values() if lane.holder is not None}

    def recalled(self) -> dict[str, int]:
        """Whose turn somebody waits for, and since when."""
        return {
            lane.holder: lane.recalled_ns
            for lane in self._lanes.values()
            if lane.holder is not None and lane.recalled_ns is not None
        }

    def asked(self) -> dict[str, int]:
        """Who was asked for the memory that it keeps and has not answered, and since when."""
        return self._admission.asked_ns

    def has_iterated(self, name: str, told: Progress) -> bool:
        """Whether a session with the turn has ended an iteration since it was given it: who has just been given it
        may not have heard of it, and has a right to one."""
        return self._its_lane(name).has_iterated(name, told)

    def view(self, name: str, now_ns: int) -> SessionView | None:
        """Where a session stands; None for one that has not joined."""
        admission = self._admission
        if (demand := admission.waits(name)) is not None:
            return SessionView(None, State.WAITING, demand, 0, 0)
        if (demand := admission.absent(name)) is not None:
            return SessionView(None, State.ABSENT, demand, 0, 0)
        if (lane := self._lane_of.get(name)) is None:
            return None
        member, state = lane.members[name], lane.state(name)
        under_way = state is State.TURN
        used_ns = member.used_ns + under_way * (now_ns - lane.since_ns)
        gives_way = member.share if member.share < EQUAL else None
        demand, keeps = self.memory.demands[name], name in self.memory.keepers
        return SessionView(lane.number, state, demand, member.turns + under_way, used_ns, gives_way, keeps)

    def is_in(self, name: str) -> bool:
        """Whether a session has joined and been let in."""
        return name in self._lane_of

    def is_safe(self) -> bool:
        """Whether memory is promised once only."""
        return is_safe(self.memory)

    def _its_lane(self, name: str) -> LaneTurns:
        if (lane := self._lane_of.get(name)) is None:
            raise ChannelError("has not been admitted")
        return lane

    def _entered(self, applicant: Applicant, now_ns: int) -> Notice:
        number = self.memory.lane_of(applicant.name).number
        lane = self._lanes.setdefault(number, LaneTurns(self._rules, number, now_ns))
        lane.join(applicant.name, applicant.standing)
        self._lane_of[applicant.name] = lane
        return Notice(applicant.name, Message.ADMITTED)

    def _boundary(self, lane: LaneTurns, now_ns: int) -> list[Notice]:
        self._admission.at_boundary(lane.number)
        return self._settle(now_ns)

    def _settle(self, now_ns: int) -> list[Notice]:
        for name in [name for name, until_ns in self._giving_way.items() if now_ns >= until_ns]:
            del self._giving_way[name]
            self._its_lane(name).level(name)
        notices = [self._entered(applicant, now_ns) for applicant in self._admission.enter(now_ns)]
        notices += self._admission.keep(now_ns)
        for lane in self._lanes.values():
            if (first := lane.hand_over(now_ns)) is not None:
                notices.append(Notice(first, Message.TURN))
            if lane.holder is None or lane.recalled_ns is not None:
                continue
            if self._admission.waits_for(lane.number) or lane.is_recall_due(now_ns):
                lane.recalled_ns = now_ns
                notices.append(Notice(lane.holder, Message.RECALL))
        return notices
