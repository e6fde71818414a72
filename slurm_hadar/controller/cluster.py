"""The seam between the loop and what it steers: a Slurm cluster, or the simulator's virtual one."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

from slurm_hadar.config import Config
from slurm_hadar.controller.journal import Event, WriteRecord
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.controller.steering.read_back import ReadBack
from slurm_hadar.model import Snapshot

__all__ = ["SETTLE_S", "Cluster", "Outcome", "Seen", "SeenT", "asked_every_s"]

#: From an event to the round that it brings forward: a job's last word comes before Slurm frees its GPUs.
SETTLE_S = 0.5
_ASKED = 5


def asked_every_s(event_round_s: float) -> float:
    """How often Slurm is asked for new jobs and free GPUs from half a second before a round may come: so many times in
    the shortest time between two rounds, at most once a second."""
    return max(1.0, event_round_s / _ASKED)


class Seen(Protocol):
    """One look at a cluster. ``finished`` are (job id, final state) of the jobs that are over since the last look;
    ``stays`` steerable jobs that keep their place once they run; ``events`` what else has happened to jobs since;
    ``read_s`` is how long looking took."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def finished(self) -> Iterable[tuple[str, str]]: ...

    @property
    def stays(self) -> Set[str]: ...

    @property
    def events(self) -> Iterable[Event]: ...

    @property
    def read_s(self) -> float: ...

    def with_snapshot(self, snapshot: Snapshot) -> Self:
        """The same look, with another snapshot for the policy."""


@dataclass
class Outcome:
    """What a round did, or would have done: ``acted`` says which. ``changes`` are those after vetoes; ``log`` has one
    entry per write and job; ``shown`` is what Slurm showed last, empty where it was not asked any more.

    ``denied`` maps jobs that are not this user's to change to Slurm's words. ``unanswered`` are writes of which it is
    not known what became: Slurm went away before it answered. ``ended`` are jobs that were to be stopped, and
    had ended by themselves. ``marks`` are epoch seconds: when the checkpoints were there (saved), the first batch was
    written (written), and the stopped jobs had left their nodes (left).
    """

    changes: list[Change] = field(default_factory=list)
    acted: bool = True
    log: list[WriteRecord] = field(default_factory=list)
    denied: dict[str, str] = field(default_factory=dict)
    unanswered: list[WriteRecord] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    shown: ReadBack = field(default_factory=ReadBack)
    commands: int = 0
    leases: int = 0
    marks: dict[str, float] = field(default_factory=dict)
    act_s: float = 0.0
    verify_s: float = 0.0

    @property
    def failed(self) -> int:
        return sum(1 for w in self.log if w.outcome.failed)

    @property
    def stopped(self) -> frozenset[str]:
        """The jobs that were told to end."""
        return frozenset(c.job_id for c in self.changes if c.kind.stops)

    def count(self, kind: ChangeKind) -> int:
        return sum(1 for c in self.changes if c.kind is kind)


#: What the loop is shown by one kind of cluster.
SeenT = TypeVar("SeenT", bound=Seen)


class Cluster(abc.ABC, Generic[SeenT]):
    """What the loop needs of a cluster: its clock, what is seen of it, and a way to carry out changes. ``isolated``:
    the jobs that a step failed on."""

    isolated: Quarantine

    @abc.abstractmethod
    def now(self) -> float:
        """The time on the cluster's clock, in epoch seconds."""

    @property
    @abc.abstractmethod
    def stopped(self) -> bool:
        """Whether the loop shall end."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the loop after the current write."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Return when the next round is due: a round after the begin of the last, or earlier after an event."""

    @abc.abstractmethod
    def observe(self, acting_only: bool) -> SeenT:
        """Look. With ``acting_only``, jobs of partitions that are not in mode act are pinned.

        Raises SlurmError if the cluster does not answer or is not understood.
        """

    @abc.abstractmethod
    def circuit_open(self) -> str:
        """Why nothing may be changed any more, in words for the log; empty if all is well."""

    def reconfigure(self, _config: Config) -> None:
        """Go by another configuration from now on. Between rounds only."""
        return

    def standby(self) -> str:
        """Why another controller acts on this cluster now, in words for the log; empty where this one may."""
        return ""

    @abc.abstractmethod
    def carry_out(self, number: int, seen: SeenT, changes: Sequence[Change]) -> Outcome:
        """Carry out the changes of round ``number`` and verify them. Raises SlurmUnavailable if it goes away."""

    def hold_off(self) -> None:
        """Nothing is carried out for now, also not what was begun in an earlier round."""
        return

    @abc.abstractmethod
    def conclude(self, seen: SeenT) -> None:
        """The round is over: keep what must be known in the next one."""
