"""What must hold while hostile users do what they can, looked at once a second."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

from benchmarks.attack.deeds import Asked, Deeds
from benchmarks.attack.honest import Honest
from benchmarks.attack.people import HOSTILE
from benchmarks.attack.stage import ACCOUNT_GPUS, LICENCES, QOS_GPUS, QOS_JOBS, ROUND_S, Stage
from benchmarks.campaigns.sent import changes_of, check_log, unexplained
from benchmarks.campaigns.watch import LOOK_EVERY_S, Lookout
from benchmarks.chaos.jobs import PlainJob
from slurm_hadar.comment import read
from slurm_hadar.controller.steering.forms import gpus_asked
from slurm_hadar.controller.steering.promises import Promises
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import ClusterState, SlurmJob, SlurmNode

__all__ = ["BOUND_S", "Watch", "check_honest", "check_words"]

SLACK_S = 10.0  # for looks a second apart, Slurm's own scheduler, and a machine with less cores than there are daemons
BOUND_S = 2 * ROUND_S + SLACK_S
LONGEST_LEASE_S = 121.0 + 6.0  # Slurm's own, after a requeue
IN_FLIGHT_S = 2.0  # what a round had decided before somebody else spoke
MEMORY_BYTES = 100 << 20
_PINNED = "pinned"
_BAD_WORDS = re.compile(r"round skipped.*|round given up.*|acts again in .*|.*broke its contract.*")


class Watch(Lookout):
    """``waits`` are the longest times that honest jobs waited beside a free GPU, in seconds, by job. ``kept`` counts
    the looks at an honest job for which Slurm kept all free GPUs from it, for a job that is left to Slurm."""

    def __init__(self, stage: Stage, honest: Honest, deeds: Deeds) -> None:
        super().__init__(stage.daemon, stage.backend)
        self.stage = stage
        self.honest = honest
        self.deeds = deeds
        self.kept = 0
        self.waits: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._pinned: Counter[str] = Counter()
        self._last = 0.0

    def look(self) -> None:
        asked = list(self.deeds.asked.values())  # those of before the look
        if (state := self.read()) is None:
            self._since.clear()
            return
        jobs = {j.job_id: j for j in state.jobs}
        waits = self._waits()
        self._honest(state, waits)
        self._limits([j for j in state.jobs if j.state is JobState.RUNNING and j.user in HOSTILE])
        for one in asked:
            job = jobs.get(one.job)
            if job is not None and self.deeds.asked.get(one.job) is one:
                self._kept(one, job)
        self._innocent(jobs, waits)

    def _honest(self, state: ClusterState, waits: Mapping[str, str]) -> None:
        """Who waits beside a free GPU, though not by Slurm's own doing, and for how long."""
        mono = time.monotonic()
        lag_s = max(0.0, mono - self._last - 2 * LOOK_EVERY_S) if self._last else 0.0  # the machine stood still
        self._last = mono
        closed = {n for r in state.bounds.reservations if r.start <= state.time < r.end for n in r.nodes}
        rooms = {n.name for n in state.nodes if n.name not in closed and _room(n)}
        promises = Promises(self._left_to_slurm(state.jobs, waits), state.time)
        for job in state.jobs:
            if job.job_id not in self.honest.ids or job.state is not JobState.PENDING:
                self._since.pop(job.job_id, None)
                continue
            if job.held:
                self.complain(f"honest job {job.job_id} is held ({job.reason})")
            ahead_s = (job.eligible or 0.0) - state.time
            if ahead_s > LONGEST_LEASE_S:
                self.complain(f"honest job {job.job_id} is deferred for longer than any lease")
            kept = rooms & promises.closed(job).keys()
            self.kept += bool(rooms and kept == rooms)
            ours = ahead_s > 0 or (job.req_nodes and not rooms & set(job.req_nodes))
            if not (rooms - kept and ours):
                self._since.pop(job.job_id, None)
                continue
            since = self._since[job.job_id] = self._since.get(job.job_id, mono) + lag_s
            self.waits[job.job_id] = max(self.waits.get(job.job_id, 0.0), mono - since)
            waited = mono - since
            if waited > BOUND_S and waited > (bound := 2 * self._longest_round(waited) + SLACK_S):
                self.complain(f"honest job {job.job_id} waits for more than {bound:.1f} s beside free GPUs")

    def _left_to_slurm(self, jobs: Iterable[SlurmJob], waits: Mapping[str, str]) -> list[SlurmJob]:
        """Those that nobody steers, by the journal or because it has not seen them yet."""
        return [j for j in jobs if j.job_id not in self.honest.ids and waits.get(j.job_id, _PINNED) == _PINNED]

    def _longest_round(self, lately_s: float) -> float:
        """The longest time between two rounds that lie in so many last seconds: where Slurm does not start what it was
        told to, a round waits for it."""
        with contextlib.suppress(sqlite3.Error), self._journal() as db:
            since = time.time() - lately_s
            begun = [float(t) for (t,) in db.execute("SELECT time FROM rounds WHERE time >= ? ORDER BY time", (since,))]
            return max([ROUND_S, *(b - a for a, b in pairwise(begun))])
        return ROUND_S

    def _journal(self) -> contextlib.closing[sqlite3.Connection]:
        return contextlib.closing(sqlite3.connect(f"file:{self.stage.state / 'journal.db'}?mode=ro", uri=True))

    def _limits(self, running: list[SlurmJob]) -> None:
        """No job has more than its owner may ask for, by Slurm's limits and by its submission."""
        one, few, small = Counter[str](), Counter[str](), 0
        for job in running:
            gpus = gpus_asked(job) or 0
            one[job.user] += gpus * (job.qos == "one")
            few[job.user] += job.qos == "few"
            small += gpus * (job.account == "small")
            self._size(job, gpus)
        for user, gpus in one.items():
            if gpus > QOS_GPUS:
                self.complain(f"user {user} runs with {gpus} GPUs in QOS one, which allows {QOS_GPUS}")
        for user, count in few.items():
            if count > QOS_JOBS:
                self.complain(f"user {user} runs {count} jobs in QOS few, which allows {QOS_JOBS}")
        if small > ACCOUNT_GPUS:
            self.complain(f"account small has {small} GPUs, which may have {ACCOUNT_GPUS}")
        if sum("tool" in j.licenses for j in running) > LICENCES:
            self.complain("more licences are in use than there are")

    def _size(self, job: SlurmJob, gpus: int) -> None:
        base = job.job_id.split("_")[0]
        asked = self.deeds.shapes.get(base)
        if asked is None or base in self.deeds.touched or asked.exclusive or asked.max_nodes > asked.num_nodes:
            return
        said = read(asked.comment)[0]
        if said.gpus is not None or said.nodes is not None:
            return
        more_gpus = gpus > (gpus_asked(asked) or gpus)
        more_cpus = len(job.gpus) == 1 and job.num_cpus > asked.num_cpus
        # else it is Slurm's own doing, which counts --cpus-per-gpu when the job starts
        if (more_gpus or more_cpus) and self._sent(job.job_id, 0.0, time.time(), "NumCPUs="):
            what = f"{gpus} GPUs and {job.num_cpus} CPUs"
            self.complain(f"job {job.job_id} runs with {what}, submitted for {gpus_asked(asked)} and {asked.num_cpus}")

    def _kept(self, asked: Asked, job: SlurmJob) -> None:
        """An owner's or administrator's hold or start time is as it was."""
        if job.state is not JobState.PENDING and asked.value == 0.0 and not job.state.active:
            return  # cancelled
        held = job.held or not job.state.active
        same = held if asked.value == 0.0 else job.state is not JobState.PENDING or job.eligible == asked.value
        if same:
            return
        self.deeds.asked.pop(asked.job, None)
        if self._sent(asked.job, asked.when, asked.when + IN_FLIGHT_S):
            return  # it crossed with a round that could not know
        if self._sent(asked.job, asked.when + IN_FLIGHT_S, time.time()):
            what = "hold" if asked.value == 0.0 else "start time"
            self.complain(f"the {what} that job {asked.job} was given by its owner or administrator was overwritten")

    def _sent(self, job: str, since: float, until: float, words: str = "") -> bool:
        """Whether the controller told Slurm something of the job in this time, with these words in it."""
        files = [f for f in self.stage.sent.glob("*.sent") if since <= f.stat().st_mtime <= until]
        return any(job == told and words in text for file in files for told, text in changes_of(file))

    def _innocent(self, jobs: dict[str, SlurmJob], waits: Mapping[str, str]) -> None:
        """No honest job is left to Slurm with a reason that is not its own, round after round."""
        for job_id in self.honest.ids & waits.keys() & jobs.keys():
            pinned = waits[job_id] == _PINNED and jobs[job_id].state is JobState.PENDING
            self._pinned[job_id] = self._pinned[job_id] + 1 if pinned else 0
            if self._pinned[job_id] * LOOK_EVERY_S > BOUND_S:
                self.complain(f"honest job {job_id} is not steered")

    def _waits(self) -> dict[str, str]:
        """The tier of each job that waited in the last round."""
        with contextlib.suppress(sqlite3.Error, ValueError), self._journal() as db:
            found = db.execute("SELECT job_id, record FROM waits")
            return {job: json.loads(text).get("tier", "") for job, text in found}
        return {}


def _room(node: SlurmNode) -> bool:
    """Whether a job of one GPU, one CPU and 100 MiB fits."""
    free = sum(c for _, c in node.gpus) - sum(c for _, c in node.used)
    memory = node.memory_bytes - node.memory_used_bytes
    return (
        node.available and free > 0 and node.cpus > node.cpus_used and (memory > MEMORY_BYTES or not node.memory_bytes)
    )


def check_honest(stage: Stage, honest: Honest) -> list[str]:
    """All honest jobs have come to their end as they should."""
    jobs = {j.job_id: j for j in stage.backend.read_jobs()}
    problems = []
    for job_id in sorted(honest.ids):
        job = jobs.get(job_id)
        if job is None:
            problems.append(f"honest job {job_id} is lost")
        elif job.state is not JobState.DONE:
            problems.append(f"honest job {job_id} ({job.name}) is {job.state_text.lower()} ({job.reason})")
    return problems + [p for chain in honest.chains for p in _check_chain(chain)]


def _check_chain(job: PlainJob) -> list[str]:
    ends = job.ends()
    if len(ends) != 1:
        return [f"training {job.job_id} came to its end {len(ends)} times"]
    if (ends[0]["steps"], ends[0]["weights"]) != (job.steps, job.expected):
        return [f"training {job.job_id} ended with other weights than the undisturbed run"]
    return []


def check_words(stage: Stage) -> tuple[int, list[str]]:
    """(changes sent, problems): what the controller said of itself, and what its journal does not tell of."""
    problems = check_log(stage.log)
    problems += list(dict.fromkeys(re.sub(r"\d{3,}", "N", w)[:200] for w in _BAD_WORDS.findall(stage.log)))
    for code, times in Counter(code for _, code in stage.daemon.ends).items():
        problems.append(f"the controller ended by itself with exit code {code}, {times} times")
    changes, untold = unexplained(stage.sent, stage.state)
    return changes, problems + untold
