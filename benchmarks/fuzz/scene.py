"""One controller over one Slurm in memory, beside honest jobs all that users can do, and what must hold of each round:

* it raises nothing, and is skipped only where Slurm is away; the policy's plan keeps its contract;
* nothing is written about a job that its owner has not given into our hands, or that is held, suspended or ending;
* no job asks Slurm for more GPUs than its owner did; no GPU is given out twice;
* an owner's or administrator's hold and start time stay as they are;
* under policies that start whoever fits, an honest job does not wait for a third round beside a GPU that is free.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.fuzz import words
from slurm_hadar.comment import read
from slurm_hadar.config import Config, load
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.loop import Controller, RoundResult
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.setup import steer
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import SPOOL_FILE, Report
from slurm_hadar.model import JobState
from slurm_hadar.policies import registry
from slurm_hadar.slurm.state import ClusterState, Reservation, SlurmJob, Write, WriteResult
from slurm_hadar.testing.fake_limits import gpus_of, holds_gpus
from slurm_hadar.testing.fake_slurm import FakeSlurm

__all__ = ["Scene", "prepare_folders"]

TOKEN = 64 * "a"
ROUND_S = 4.0
MOST_JOBS = 9
WAITS_ROUNDS = 3  # it is seen in one, and may be put off in one more
SETTINGS = (
    "controller.mode=act", f"controller.round_s={ROUND_S}", "controller.foresee_s=0", "jobs.start_timeout_s=2",
    "jobs.ack_timeout_s=1", "jobs.end_timeout_s=2", "jobs.restart_cost_s=1", "predict.enabled=false",
)  # fmt: skip
MORE = (
    (), (), ("guard.min_run_s=0",), ("guard.max_preemptions=1",), ("partitions.prod.mode=observe",),
    ("jobs.lose_progress=true", "guard.min_run_s=0"), ("controller.foresee_s=2",),
)  # fmt: skip
# who waits for a better GPU, or lets nobody overtake the head of its queue, may leave one idle
_START_WHO_FITS = ("hadar", "fifo", "srtf", "tiresias", "wcs_duration", "wcs_subtime", "wcs_workload")
_TRANSIENT_HOLDS = ("BadConstraints", "launch failed requeued held")


@cache
def _config(policy: str, more: tuple[str, ...]) -> Config:
    return load(None, [*SETTINGS, f"policy.name={policy}", *more])


class Judge(FakeSlurm):
    """Slurm in memory that looks at what it is told: ``problems`` are writes about jobs that are not to be touched."""

    def __init__(self, nodes: dict[str, tuple[str, int]]) -> None:
        super().__init__(nodes, eager=True)
        self.first: dict[str, SlurmJob] = {}  # as the round's first read showed them, by which it is decided
        self.shown: dict[str, SlurmJob] = {}  # as the last one did
        self.asked: dict[str, SlurmJob] = {}
        self.own_start: dict[str, float] = {}
        self.spoilt = False  # what is remembered of jobs may be wrong
        self.problems: list[str] = []

    def add(self, gpus: int, fields: dict[str, Any]) -> str:
        """Submit a job with any of its fields as given."""
        job_id = self.submit(gpus, job_id=fields["job_id"])
        self.jobs[job_id] = self.asked[job_id] = replace(self.jobs[job_id], **fields)
        return job_id

    def read(self) -> ClusterState:
        state = super().read()
        self.first = dict(self.shown)
        return state

    def each_job(self) -> Iterator[SlurmJob]:
        jobs = super().each_job()
        self.shown = dict(self.jobs)
        return jobs

    def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        for write in writes:
            for job_id in write.job_ids:
                if why := self._not_ours(write, self.first.get(job_id)) or self._set_aside(write, job_id):
                    self.problems.append(f"{write.verb} of a job that {why}")
        results = super().write(writes)
        for result in results:
            job, asked = self.jobs.get(result.job_id), self.asked.get(result.job_id)
            if result.write.verb == "update" and result.error is None and job is not None and asked is not None:
                self._judge_size(job, asked)
        return results

    def _judge_size(self, job: SlurmJob, asked: SlurmJob) -> None:
        if not self.spoilt and read(asked.comment)[0].gpus is None and gpus_of(job) > gpus_of(asked):
            self.problems.append(f"a job got {gpus_of(job)} GPUs where its owner asked for {gpus_of(asked)}")

    def _not_ours(self, write: Write, job: SlurmJob | None) -> str | None:
        """Why nothing may be said about the job; None if something may."""
        if job is None:
            return "was never shown"
        if job.fault:
            return "cannot be read"
        if (not job.comment.startswith("hadar:") or read(job.comment)[1] is not None) and not _gives_back(write):
            return "has no comment of ours"
        if job.het_id or not job.batch or not job.requeue or job.state in (JobState.SUSPENDED, JobState.COMPLETING):
            return "is het, not of a batch, not to be requeued, suspended or ending"
        own_start = not self.spoilt and self.own_start.get(job.job_id, 0.0) > time.time()
        if own_start and job.state is JobState.PENDING and not _gives_back(write):
            return "has a start time that is not ours"
        over = not job.state.active
        return f"is over ({write.verb})" if over and write.verb != "restart" else None

    def _set_aside(self, write: Write, job_id: str) -> str | None:
        """Whether the job is held, by the last look at it; our own node list may be taken from it all the same."""
        job = self.shown.get(job_id)
        if job is None or not job.held or job.reason in _TRANSIENT_HOLDS:
            return None
        return None if _gives_back(write) else f"is held ({job.reason})"


def _gives_back(write: Write) -> bool:
    """Whether it takes our own node list from a job, which stands to no one's hand-over."""
    return write.verb == "update" and "StartTime" not in dict(write.fields)


class Scene:
    """``pass_time`` moves the clock on. ``faults`` counts what was done by kind."""

    def __init__(
        self, rng: random.Random, policy: str, folders: Sequence[Path], pass_time: Callable[[float], None]
    ) -> None:
        self.rng, self._folders, self._pass_time = rng, folders, pass_time
        self.faults: Counter[str] = Counter()
        names = [f"{'v100' if i % 2 else 'k80'}-{i}" for i in range(rng.randrange(1, 6))]
        self.slurm = Judge({n: (n.split("-")[0], rng.choice((1, 2, 4))) for n in names})
        self._draw_limits(names)
        self._settings = rng.choice(MORE)
        self._policy = policy
        # moves that the administrator allows no more of keep a place
        self._may_wait = policy not in _START_WHO_FITS or "guard.max_preemptions=1" in self._settings
        self._journal, self._book = Journal(":memory:"), ReportBook()
        self._seq = 0
        self._honest: list[str] = []
        self._waits: Counter[str] = Counter()
        self._number = 0
        for _ in range(rng.randrange(1, 4)):
            self._submit_honest()
        for _ in range(rng.randrange(6)):
            self._submit_hostile()
        self.controller = self._start()

    def _draw_limits(self, names: list[str]) -> None:
        rng, limits = self.rng, self.slurm.limits
        limits.qos_gpus, limits.account_gpus = {"one": rng.choice((0, 1, 2))}, {"small": rng.choice((0, 1))}
        limits.licences = {"tool": rng.choice((0, 1))}
        self.slurm.tells_limits = rng.random() < 0.5
        limits.reservations["later"] = Reservation("later", frozenset(names[:1]), time.time() + 1e6, time.time() + 2e6)
        if len(names) > 2 and rng.random() < 0.3:
            limits.reservations["other"] = Reservation("other", frozenset(names[-1:]), time.time(), time.time() + 1e6)

    def _start(self) -> Controller[Any]:
        config = _config(self._policy, self._settings)
        policy = registry.get(config.policy.name, **config.policy.params)
        return steer(policy, config, Parts(self.slurm, self._journal, self._book))

    def close(self) -> None:
        self._journal.close()

    # A round

    def round(self) -> list[str]:
        """Something happens, then there is a round; returns what did not hold."""
        for _ in range(self.rng.choice((0, 0, 1, 1, 2, 4))):
            self._do(self.rng.choice(self._FAULTS))
        self.slurm.away = self.rng.random() < 0.02
        held = {j.job_id for j in self.slurm.jobs.values() if j.held and j.reason not in _TRANSIENT_HOLDS}
        self.slurm.before_write = self._between if self.rng.random() < 0.1 else lambda: None
        self.slurm.problems = []
        began = time.time()
        result = self.controller.run_round()
        problems = [*self.slurm.problems, *self._of_round(result), *self._of_jobs(held)]
        self.slurm.away = False
        self._pass_time(max(0.1, ROUND_S - (time.time() - began)))
        return problems

    def _do(self, fault: Callable[[Scene], None]) -> None:
        self.faults[fault.__name__.lstrip("_")] += 1
        fault(self)

    def _between(self) -> None:
        """Once a round, between what it read and what it writes."""
        self.slurm.before_write = lambda: None
        self._do(self.rng.choice(self._RACES))

    def _of_round(self, result: RoundResult[Any]) -> list[str]:
        note = result.record.note
        return [note] if note and not self.slurm.away else []

    def _of_jobs(self, held: set[str]) -> list[str]:
        jobs, problems = self.slurm.jobs, []
        problems += ["a hold was released" for j in held if j in jobs and jobs[j].state.active and not jobs[j].held]
        for job_id, until in [] if self.slurm.spoilt else self.slurm.own_start.items():
            job = jobs.get(job_id)
            if job is not None and job.state is JobState.PENDING and until > time.time() and job.eligible != until:
                problems.append("a start time that is not ours was overwritten")
        for name, node in self.slurm.nodes.items():
            mine = [j for j in self.slurm.asked if j in jobs and name in jobs[j].nodes and holds_gpus(jobs[j])]
            drawn = any(self.slurm.asked[j].state is not JobState.PENDING for j in mine)
            if not drawn and self.slurm.used(name) > sum(c for _, c in node.gpus):
                problems.append("a node has more GPUs in use than it has")
        return problems + self._of_honest()

    def _of_honest(self) -> list[str]:
        if self.slurm.away or self._may_wait:
            return []
        now, problems = time.time(), []
        for job_id in self._honest:
            job, asked = self.slurm.jobs.get(job_id), self.slurm.asked[job_id]
            could = job is not None and job.state is JobState.PENDING and not job.held
            could = could and any(self.slurm.has_room(asked, name, now) for name in self.slurm.nodes)
            self._waits[job_id] = self._waits[job_id] + 1 if could else 0
            if self._waits[job_id] == WAITS_ROUNDS + 1:
                problems.append(f"{self._policy}: an honest job waits beside a free GPU ({job.reason if job else ''})")
        return problems

    # What happens

    def _some(self, *states: JobState) -> SlurmJob | None:
        """A job of those that are not honest."""
        found = [j for i, j in self.slurm.jobs.items() if i not in self._honest and j.state in states]
        return self.rng.choice(found) if found else None

    def _folder(self) -> str:
        return str(self.rng.choice(self._folders))

    def _new_id(self) -> str:
        self._number += 1
        return self.rng.choice((f"{self._number}",) * 4 + (f"{self._number}_{self.rng.randrange(3)}",) * 2)

    def _active(self) -> int:
        return sum(j.state.active for j in self.slurm.jobs.values())

    def _submit_honest(self) -> None:
        if self._active() < MOST_JOBS:
            self._number += 1
            self._honest.append(self.slurm.add(1, words.honest(str(self._number), "")))

    def _submit_hostile(self) -> None:
        if self._active() < MOST_JOBS:
            fields = words.hostile(self.rng, self._new_id(), sorted(self.slurm.nodes), self._folder(), time.time())
            job_id = self.slurm.add(self.rng.choice((1, 1, 2, 4)), fields)
            array = self.slurm.jobs[job_id].array_id
            if array is not None and self.rng.random() < 0.5:
                self.slurm.limits.throttles[array] = self.rng.choice((0, 1))

    def _end_one(self) -> None:
        running = [j.job_id for j in self.slurm.jobs.values() if j.state is JobState.RUNNING]
        if running:
            job_id = self.rng.choice(running)
            # the nodes of a job that fails at once after a restart are avoided for minutes, on purpose
            end = self.slurm.end if job_id in self._honest else self.rng.choice((self.slurm.end, self.slurm.fail))
            end(job_id)

    def _vanish(self) -> None:
        job = self._some(*JobState)
        if job is not None:
            del self.slurm.jobs[job.job_id]

    def _cancel_storm(self) -> None:
        self.slurm.cancel([i for i, j in self.slurm.jobs.items() if i not in self._honest and j.state.active])

    def _change(self) -> None:
        """The job is submitted anew with the same id, as after a slurmctld that forgot it."""
        job = self._some(*JobState)
        if job is not None:
            fields = words.hostile(self.rng, job.job_id, sorted(self.slurm.nodes), job.work_dir, time.time())
            self.slurm.own_start.pop(job.job_id, None)
            # Slurm knows no other job with the id of one that was restarted
            self.slurm.add(1, {**fields, "restarts": 0, "submit": float(int(time.time()))})

    def _recomment(self) -> None:
        job = self._some(JobState.PENDING, JobState.RUNNING)
        if job is not None:
            self._replace(replace(job, comment=words.comment(self.rng)))

    def _replace(self, job: SlurmJob) -> None:
        self.slurm.jobs[job.job_id] = job
        self.slurm.asked[job.job_id] = replace(self.slurm.asked[job.job_id], comment=job.comment)

    def _hold(self) -> None:
        job = self._some(JobState.PENDING)
        if job is not None:
            self.slurm.hold(job.job_id, admin=self.rng.random() < 0.5)

    def _unhold(self) -> None:
        job = self._some(JobState.PENDING)
        if job is not None:
            self.slurm.jobs[job.job_id] = replace(job, priority=100, reason="None")

    def _own_start(self) -> None:
        job = self._some(JobState.PENDING)
        if job is not None:
            until = float(int(time.time()) + 1000)
            self.slurm.defer(job.job_id, until)
            self.slurm.own_start[job.job_id] = until

    def _suspend(self) -> None:
        job = self._some(JobState.RUNNING)
        if job is not None:
            self.slurm.suspend(job.job_id)

    def _resume(self) -> None:
        job = self._some(JobState.SUSPENDED)
        if job is not None:
            self.slurm.resume(job.job_id)

    def _refuse(self) -> None:
        job = self._some(JobState.PENDING, JobState.RUNNING)
        if job is not None:
            self.slurm.refuse[job.job_id] = self.rng.choice(
                ("Requested operation is presently disabled", "Requested node configuration is not available",
                 "Invalid user id", "Access/permission denied", "Job violates accounting/QOS policy (job submit limit, "
                 "user's size and/or time limits)", "Job has already finished", "Invalid job id specified")
            )  # fmt: skip

    def _report(self) -> None:
        """A word of any job, honest ones too, which say what is plausible only."""
        if not self.slurm.jobs:
            return
        job = self.rng.choice([*self.slurm.jobs.values()])
        honest = job.job_id in self._honest
        if honest or self.rng.random() < 0.8:
            self.slurm.vouch(job.job_id, TOKEN)
        said = {"steps": self._seq, "steps_per_s": 3.0, "resumable": True} if honest else words.report_fields(self.rng)
        kinds = ("hello", "report") if honest else ("hello", "report", "report", "saved", "bye")
        kind = self.rng.choice(kinds)
        said |= {"bye": {"exit_code": 0}, "saved": {"saved_step": words.number(self.rng)}}.get(kind, {})
        try:
            for _ in range(1 if honest else self.rng.choice((1, 1, 8))):
                self._seq += 1
                restart = job.restarts if self.rng.random() < 0.9 else words.number(self.rng)
                self._book.ingest(Report(kind, job.job_id, restart, self._seq, TOKEN, time.time(), "node", **said))
        except ChannelError:
            self.faults["report refused"] += 1

    def _restart(self) -> None:
        self.controller = self._start()

    def _spoil_journal(self) -> None:
        """Values of the journal that nobody wrote, then a restart that reads them."""
        value = self.rng.choice((*(n for n in words.NUMBERS if n < 2**63), 5e-324, 1e300, None, "x", "[]", "{}", ""))
        table, column, key = self.rng.choice(_COLUMNS)
        new = f"json_set({column}, '$.{key}', json_quote(?))" if key else "?"
        with contextlib.suppress(sqlite3.Error), self._journal.connection as db:
            db.execute(f"UPDATE {table} SET {column} = {new}", (value,))
        self.slurm.spoilt = True
        self._honest.clear()  # they may wait now; those that come later may not
        self._restart()

    def _drain(self) -> None:
        self.slurm.drain([self.rng.choice(sorted(self.slurm.nodes))])

    def _undrain(self) -> None:
        for name, node in self.slurm.nodes.items():
            self.slurm.nodes[name] = replace(node, available=True, state="idle")

    def _wait_long(self) -> None:
        self._pass_time(self.rng.choice((0.1, 20.0, 300.0, 86400.0)))
        self._waits.clear()

    # what may happen between a round's reading and its writing, and what a scene consists of; twice = twice as often
    _RACES = (_vanish, _cancel_storm, _hold, _end_one, _recomment, _submit_hostile, _suspend, _drain)
    _FAULTS = (
        _submit_honest, _submit_hostile, _submit_hostile, _submit_hostile, _end_one,
        _end_one, _vanish, _cancel_storm, _change, _recomment, _hold, _unhold,
        _own_start, _suspend, _resume, _refuse, _report, _report,
        _report, _report, _restart, _spoil_journal, _drain, _undrain, _undrain,
        _wait_long,
    )  # fmt: skip


_RECORD_KEYS = (
    "submit", "restarts", "workers", "nodes", "tasks", "cpus", "lease", "defer_until", "run_since", "booked", "avoid",
    "attained_s", "moves", "steps", "steps_per_s", "total_steps", "saved_step", "save_s", "start_s", "slow", "batch",
    "ran_s", "ran_on", "steered", "job_id",
)  # fmt: skip
_COLUMNS = (
    *(("jobs", "record", key) for key in _RECORD_KEYS), ("jobs", "record", ""), ("usage", "gpu_s", ""),
    ("forks", "steps", ""), ("memory", "content", ""), ("throughput_measurement", "steps_per_s", ""),
    ("throughput_measurement", "samples", ""), ("throughput_estimate", "steps_per_s", ""),
)  # fmt: skip


def prepare_folders(base: Path) -> list[Path]:
    """Directories of jobs with every kind of thing where a spool file is looked for."""
    makers: dict[str, Callable[[Path], object]] = {
        "none": lambda _p: None, "folder": Path.mkdir, "pipe": os.mkfifo, "link": lambda p: p.symlink_to("/etc/shadow"),
        "garbage": lambda p: p.write_bytes(bytes(range(256)) * 40), "lines": lambda p: p.write_bytes(b"\n" * 5000),
        "huge": lambda p: _sparse(p, 1 << 30), "loop": lambda p: p.symlink_to(p),
        "rates": lambda p: p.write_text(_spool(p.parent.name)), "closed": lambda p: p.touch(0o000),
    }  # fmt: skip
    folders = []
    for name, make in makers.items():
        folder = base / name
        for job in [str(n) for n in range(1, 8)]:
            (folder / ".hadar" / job).mkdir(parents=True)
            make(folder / ".hadar" / job / SPOOL_FILE)
        folders.append(folder)
    return folders


def _sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def _spool(job: str) -> str:
    """Lines of an agent that gives its job impossible speeds."""
    rates = (0, 5e-324, 1e12, 1e300)
    fields = {"version": 1, "kind": "report", "job": job, "restart": 0, "token": TOKEN, "time": 1.0, "node": "n"}
    lines = [{**fields, "seq": 10**6 + i, "steps": i, "steps_per_s": rate} for i, rate in enumerate(rates)]
    return "".join(json.dumps(line) + "\n" for line in lines)
