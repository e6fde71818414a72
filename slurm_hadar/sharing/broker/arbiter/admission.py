"""Who is let in on a GPU, and whose memory stays there between turns.

Entry and lanes are the functions that the simulator uses (:mod:`slurm_hadar.sharing.entry`,
:mod:`slurm_hadar.sharing.lanes`).

**Memory is handed on only where somebody needs it.** Where the ephemeral memory of all fits beside each other, those
that can be asked for it are told to keep it from turn to turn: to give gigabytes back and take them anew costs more
than the rest of a hand-over. Who would be let in but for that waits until they have given it back; one that does not
answer keeps nobody out but those who need its memory.

**After another broker** (:meth:`Admission.expect`) its sessions come back one by one, at the end of their iterations,
and keep their memory until then. Who had been let in is let in again at once. Nobody else is before all are back or
gone, or a time is over; from then on what those have who are still absent counts as taken, all of it, and others are
let in beside that. Who had waited comes back to its place among those who wait.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.messages import Message, Notice
from slurm_hadar.sharing.broker.settings import Rules
from slurm_hadar.sharing.entry import Applicant, Entry, come_back, let_in
from slurm_hadar.sharing.lanes import Demand, GpuMemory, at_boundary, keep, keep_no_more, release
from slurm_hadar.sharing.sizes import MOST_BYTES
from slurm_hadar.sharing.turns import EqualShareClock, Standing

__all__ = ["Admission"]


class _Former(NamedTuple):
    """A session of the broker before that has not come back."""

    demand: Demand
    admitted: bool
    order: int


class Admission:
    """The memory of one GPU, those who are in it, and those who wait for it. ChannelError is raised for what a session
    may not ask, and changes nothing."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._memory = GpuMemory(rules.memory_bytes)
        self._inside: dict[str, Standing] = {}
        self._waiting: list[Applicant] = []
        self._equal_shares = EqualShareClock()
        self._joined = 0
        self._formers: dict[str, _Former] = {}
        self._hold_ns = 0  # until when nobody is let in but them
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

    @property
    def asked_ns(self) -> dict[str, int]:
        """Who was asked for the memory that it keeps and has not answered, and since when."""
        return dict(self._asked_ns)

    def waits(self, name: str) -> Demand | None:
        """What a session waits for that has joined and not been let in."""
        return next((applicant.demand for applicant in self._waiting if applicant.name == name), None)

    def absent(self, name: str) -> Demand | None:
        """What a session has that the broker before had let in, and that has not come back."""
        former = self._formers.get(name)
        return former.demand if former is not None and former.admitted else None

    def in_order(self) -> list[str]:
        """Who has joined, or may come back, in the order in which they came."""
        orders = {applicant.name: applicant.standing.order for applicant in self._waiting}
        orders |= {name: former.order for name, former in self._formers.items()}
        orders |= {name: standing.order for name, standing in self._inside.items()}
        return sorted(orders, key=lambda name: orders[name])

    def expect(self, name: str, demand: Demand, admitted: bool, until_ns: int) -> None:
        """A session of the broker before may come back."""
        self._formers[name] = _Former(demand, admitted, self._joined)
        self._joined += 1
        self._hold_ns = until_ns

    def join(
        self, name: str, demand: Demand, total_ns: int, group: str, now_ns: int, can_keep: bool, back: str | None
    ) -> Applicant | None:
        """A session asks to be let in. It waits until :meth:`enter`, or, where the broker before had let it in, it is
        in at once and returned."""
        if demand.alone_bytes > self._rules.memory_bytes:
            raise ChannelError(
                f"{demand.alone_bytes} bytes are needed, and the GPU has {self._rules.memory_bytes} for jobs"
            )
        if name in self._inside or self.waits(name) is not None:
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
            return None
        self._memory = come_back(self._rules.policy, self._memory, applicant)
        self._inside[name] = applicant.standing
        return applicant

    def leave(self, name: str) -> None:
        """A session is gone, whatever it was doing."""
        self._waiting = [applicant for applicant in self._waiting if applicant.name != name]
        if self._formers.pop(name, None) is not None:
            self._tight = None
        self._can_keep.discard(name)
        self._asked_ns.pop(name, None)
        if self._inside.pop(name, None) is not None:
            self._memory = release(self._memory, name)

    def at_boundary(self, number: int) -> None:
        """A lane is between two iterations."""
        self._memory = at_boundary(self._memory, number)

    def waits_for(self, number: int) -> bool:
        """Whether somebody waits for memory that a lane gives back at its boundary."""
        return bool(self._waiting) and at_boundary(self._memory, number) != self._memory

    def freed(self, name: str) -> None:
        """A session has given back what it kept, and gives its ephemeral memory back with each turn."""
        self._memory = keep_no_more(self._memory, [name])
        self._asked_ns.pop(name, None)

    def enter(self, now_ns: int) -> list[Applicant]:
        """Let in whom policy and memory allow, of those who wait."""
        if not self._waiting:
            return []
        if now_ns >= self._hold_ns or not self._formers:
            self._hold_ns = 0
        if self._hold_ns:
            return []
        self._memory, entered, self._waiting = self._let_in(self._memory)
        self._inside |= {applicant.name: applicant.standing for applicant in entered}
        return entered

    def deadline_ns(self) -> int | None:
        """When those who wait are let in though not all are back; None: that is not what they wait for."""
        return self._hold_ns if self._hold_ns and self._formers and self._waiting else None

    def keep(self, now_ns: int) -> list[Notice]:
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
            return [Notice(name, Message.KEEP) for name in sorted(new)]
        unasked = memory.keepers - self._asked_ns.keys()
        if not unasked or (known and not self._let_in(keep_no_more(memory, memory.keepers)).entered):
            return []
        self._asked_ns.update(dict.fromkeys(unasked, now_ns))
        return [Notice(name, Message.FREE) for name in sorted(unasked)]

    def _let_in(self, memory: GpuMemory) -> Entry:
        inside = list(self._inside.values())
        entry = let_in(self._rules.policy, self._beside_absent(memory), self._waiting, inside)
        return entry._replace(memory=self._in_all(entry.memory) if entry.entered else memory)

    def _beside_absent(self, memory: GpuMemory) -> GpuMemory:
        """Without what those have who are absent: they may be in the midst of an iteration."""
        return replace(memory, capacity_bytes=self._rules.memory_bytes - self.absent_bytes)

    def _in_all(self, memory: GpuMemory) -> GpuMemory:
        return replace(memory, capacity_bytes=self._rules.memory_bytes)
