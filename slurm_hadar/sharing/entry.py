"""Who of those that wait is let in on a GPU: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from slurm_hadar.sharing.lanes import Demand, GpuMemory, Place, Step, admit, find_lane
from slurm_hadar.sharing.turns import Policy, Standing, rank

__all__ = ["CROWD", "PATIENCE", "Applicant", "Entry", "come_back", "let_in"]


@dataclass(frozen=True, slots=True, eq=False)
class Applicant:
    """A session that waits for a lane. ``overtaken`` counts those that came after it and were let in before it."""

    name: str
    demand: Demand
    standing: Standing
    overtaken: int = 0


class Entry(NamedTuple):
    """The memory with those let in, who they are, and who still waits."""

    memory: GpuMemory
    entered: list[Applicant]
    waiting: list[Applicant]


#: Only who is to run now is let in, so that the memory is not filled by jobs that wait for their first turn.
_LATE = frozenset({Policy.SRTF, Policy.FSP})
#: How many there may be where not all who wait fit. Ours; what else was tried is in docs/results/sharing.md.
CROWD = {Policy.FIFO: 1, Policy.PACK: 2, Policy.FAIR: 6, Policy.RR: 6, Policy.PRIORITY: 6}
#: How often a job that does not fit is passed by under PACK, before nobody is let in until it fits.
PATIENCE = 20


def let_in(policy: Policy, memory: GpuMemory, waiting: Sequence[Applicant], inside: Sequence[Standing]) -> Entry:
    """Let in whom policy and memory allow beside those ``inside``.

    ``FIFO``: one, if nobody is there. ``SRTF``, ``FSP``: one that ranks before all who are there. The others: all, if
    all fit. If not, the GPU is crowded: only until so many are there as the policy does well with, in order of arrival
    (``PRIORITY``: the heaviest class first). ``PACK`` gives each a lane of its own, since one that waits for its turn
    in another's lane takes memory and gives nothing; who does not fit is passed by, but not for ever.
    """
    order = sorted(waiting, key=lambda a: _key(policy, a.standing))
    if policy in _LATE:
        least = min((rank(policy, other) for other in inside), default=None)
        most = len(inside) + (least is None or any(rank(policy, a.standing) < least for a in order[:1]))
        return _in_order(policy, memory, order, most)
    if policy is not Policy.FIFO:
        all_of_them = _in_order(policy, memory, order, len(inside) + len(order))
        if not all_of_them.waiting:
            return all_of_them
    crowd = CROWD[policy]
    return (_passing if policy is Policy.PACK else _in_order)(policy, memory, order, crowd)


def come_back(policy: Policy, memory: GpuMemory, applicant: Applicant) -> GpuMemory:
    """Let in one whose memory is there already, whatever else is: it was let in by the broker before."""
    ephemeral = applicant.demand.ephemeral_bytes
    if policy is Policy.PACK or not memory.lanes:
        return admit(memory, applicant.name, applicant.demand, Place(Step.NEW, None, ephemeral))
    lane = memory.lanes[0]
    place = Place(Step.ENLARGE, lane.number, max(lane.size_bytes, ephemeral))
    return admit(memory, applicant.name, applicant.demand, place)


def _key(policy: Policy, standing: Standing) -> tuple[int, int]:
    if policy in _LATE:
        return rank(policy, standing)
    return (-standing.weight if policy is Policy.PRIORITY else 0), standing.order


def _in_order(policy: Policy, memory: GpuMemory, order: Sequence[Applicant], most: int) -> Entry:
    """Let in one after the other until ``most`` are there or one does not fit."""
    for done, applicant in enumerate(order):
        with_it = _admitted(policy, memory, applicant) if len(memory.demands) < most else None
        if with_it is None:
            return Entry(memory, list(order[:done]), list(order[done:]))
        memory = with_it
    return Entry(memory, list(order), [])


def _passing(policy: Policy, memory: GpuMemory, order: Sequence[Applicant], most: int) -> Entry:
    """The same, but who does not fit is passed by, as long as its patience lasts."""
    entered: list[Applicant] = []
    waiting: list[Applicant] = []
    barred = False
    for applicant in order:
        with_it = None if barred or len(memory.demands) >= most else _admitted(policy, memory, applicant)
        if with_it is None:
            barred = barred or applicant.overtaken >= PATIENCE
            waiting.append(applicant)
            continue
        memory = with_it
        entered.append(applicant)
        waiting = [replace(other, overtaken=other.overtaken + 1) for other in waiting]
    return Entry(memory, entered, waiting)


def _admitted(policy: Policy, memory: GpuMemory, applicant: Applicant) -> GpuMemory | None:
    """The whole GPU is one lane, so that its time is shared as the policy says, but under PACK: there each has its own.
    (Salus' experiments, too, ran SRTF and FAIR with lanes switched off.)"""
    place = find_lane(memory, applicant.demand, None if policy is Policy.PACK else 1)
    if place is None or (policy is Policy.PACK and place.step is not Step.NEW):
        return None
    return admit(memory, applicant.name, applicant.demand, place)
