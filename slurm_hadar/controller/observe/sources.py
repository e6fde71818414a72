"""What the observer draws on beside what Slurm says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import JobRecord, PastJob
from slurm_hadar.controller.journal.best_effort import BestEffort
from slurm_hadar.controller.observe.boots import Boots
from slurm_hadar.controller.observe.graphs import GraphBook
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.controller.prediction.forecasts import Forecaster
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.controller.steering.lessons import Lessons
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.profiles import ProfileStore
from slurm_hadar.throughput.store import ThroughputStore

__all__ = ["PAST", "Sources"]

#: So many of the jobs that ended last tell of those that come.
PAST = 2000


@dataclass
class Sources:
    """``book``: what jobs report. ``estimator``: carries speeds over from what is known; ``store``: where those that
    jobs report are filed, ``profiles`` those on shared GPUs, None = nowhere. ``records``: as the journal has them;
    ``past``: the jobs that ended last; ``recall``: the record of any job, ended or not, as the journal has it.
    ``usage``: where GPU time is booked. ``forecaster``: says how long jobs will be, None = nobody does. ``seal``: of
    the notes in jobs' comments. ``boots``: of nodes that Slurm switches on. ``quarantine``: where one job's fault stays
    that job's."""

    book: ReportBook
    estimator: Estimator
    records: dict[str, JobRecord]
    usage: UsageBook
    graphs: GraphBook
    forecaster: Forecaster | None = None
    store: ThroughputStore | None = None
    best_effort: BestEffort = field(default_factory=BestEffort)
    seal: Seal = field(default_factory=Seal)
    quarantine: Quarantine = field(default_factory=Quarantine)
    lessons: Lessons = field(default_factory=Lessons)
    profiles: ProfileStore | None = None
    boots: Boots = field(default_factory=Boots)
    past: deque[PastJob] = field(default_factory=lambda: deque(maxlen=PAST))
    recall: Callable[[str], JobRecord | None] = lambda _job_id: None
