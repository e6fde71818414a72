"""Jobs that Slurm itself keeps from starting must not keep others from starting.

    python -m benchmarks.attack.blocked [--kind qos] [--jobs 24] [--json F]

On a private Slurm with accounting one user submits 24 ``hadar:`` jobs of one kind that Slurm does not start, then
another user six that wait only for GPUs. Then eight GPUs come free, and when the six start is measured twice: without a
controller, and with one whose rounds are short. Exit code 1 if any of the six starts more than two rounds later than
without.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.attack.people import HONEST, HOSTILE, as_user, may_act_as_others
from benchmarks.campaigns.daemon import Daemon
from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.cluster.conf import MEMORY_MIB_PER_GPU
from slurm_hadar.model import JobState
from slurm_hadar.slurm.backend.cli import CliBackend

__all__ = ["KINDS", "Measured", "measure", "stage"]

NODES = "v100:2x5,k80:1x1"
FAST, SLOW = ("v100-1", "v100-2"), "k80-1"
FREE, OTHERS = 8, 6
LONGEST_S = 120.0
ROUND_S = 4.0
TOLD_S = 3.0  # within which Slurm says why jobs wait
SLACK_S = 3.0  # a look at the queue each half second, and Slurm's own scheduler comes by once a second
BLOCKED_BY, WAITS_FOR = HOSTILE[0], HONEST[0]
HADAR = "hadar:model=resnet18,batch=64,steps=2000"
LIMITS = (
    ("add", "qos", "one", "set", "MaxTRESPerUser=gres/gpu=1"),
    ("add", "account", "lab"),
    ("add", "account", "small", "GrpTRES=gres/gpu=1"),
    *(("add", "user", user, "account=lab", "QOS=normal,one", "DefaultQOS=normal") for user in ("root", *HONEST)),
    *(("add", "user", user, "account=lab", "QOS=normal,one", "DefaultQOS=normal") for user in HOSTILE),
    *(("add", "user", user, "account=small", "QOS=normal,one", "DefaultQOS=normal") for user in HOSTILE),
)


@dataclass(frozen=True)
class Kind:
    """``options`` of the blocked jobs; ``filler`` those of the job that takes what they wait for, if one does."""

    options: tuple[str, ...]
    filler: tuple[str, ...] = ()
    array: bool = False


_ON_SLOW = (f"--nodelist={SLOW}", "--gres=gpu:1")
KINDS = {
    "qos": Kind(("--gres=gpu:1", "--qos=one"), (*_ON_SLOW, "--qos=one")),
    "association": Kind(("--gres=gpu:1", "--account=small"), (*_ON_SLOW, "--account=small")),
    "licence": Kind(("--gres=gpu:1", "--licenses=tool:1"), (*_ON_SLOW, "--licenses=tool:1")),
    "throttle": Kind(("--gres=gpu:1",), array=True),
    "exclude": Kind(("--gres=gpu:1", f"--exclude={','.join(FAST)}"), _ON_SLOW),
    "reservation": Kind(("--gres=gpu:1", "--reservation=later", "--time=30")),
    "exclusive": Kind(("--gres=gpu:1", "--exclusive"), _ON_SLOW),
    "memory": Kind(("--gres=gpu:1", f"--mem={MEMORY_MIB_PER_GPU * 5}M"), _ON_SLOW),
}


@dataclass
class Measured:
    """Seconds from the moment that GPUs came free to the start of the six, without and with a controller; None = not in
    time."""

    kind: str
    jobs: int
    round_s: float
    without_s: list[float | None] = field(default_factory=list)
    with_s: list[float | None] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def in_time(self) -> int:
        """How many of the six started no later than two rounds after they did without a controller."""
        pairs = zip(sorted(map(_late, self.without_s)), sorted(map(_late, self.with_s)), strict=True)
        return sum(there <= here + 2 * self.round_s + SLACK_S for here, there in pairs if there < LONGEST_S)

    @property
    def ok(self) -> bool:
        return self.in_time == sum(s is not None for s in self.without_s) > 0

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "in_time": self.in_time, "ok": self.ok}


def _late(seconds: float | None) -> float:
    return LONGEST_S if seconds is None else seconds


@contextlib.contextmanager
def stage() -> Iterator[PrivateCluster]:
    """A cluster with limits."""
    folder = Path(tempfile.mkdtemp(prefix="hat-", dir="/tmp"))
    folder.chmod(0o755)
    extra = ("AccountingStorageEnforce=associations,limits,qos", "Licenses=tool:1")
    try:
        spec = ClusterSpec(
            name="blocked", nodes=NODES, directory=folder / "c", accounting=True, extra_conf=extra, kill_wait_s=2
        )
        with up(spec) as cluster:
            for words in LIMITS:
                cluster.run(["sacctmgr", "-i", *words])
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    cluster: PrivateCluster,
    name: str,
    jobs: int = 24,
    round_s: float = ROUND_S,
    longest_s: float = LONGEST_S,
    settings: tuple[str, ...] = (),
) -> Measured:
    """One kind, without and with a controller."""
    result = Measured(name, jobs, round_s)
    result.without_s = _try(cluster, name, jobs, longest_s, result, TOLD_S)
    with _controller(cluster, round_s, settings):
        result.with_s = _try(cluster, name, jobs, longest_s, result, 3 * round_s)  # it has seen them by then
    return result


def _try(
    cluster: PrivateCluster, name: str, jobs: int, longest_s: float, result: Measured, before_s: float
) -> list[float | None]:
    """``before_s``: how long they all wait before GPUs come free."""
    kind, backend = KINDS[name], CliBackend(20.0, 0, cluster.env)
    try:
        fillers = [_submit(cluster, "root", f"--nodelist={node}", "--gres=gpu:1", comment="") for node in FAST]
        ends = [_submit(cluster, "root", f"--nodelist={n}", f"--gres=gpu:{FREE // 2}", comment="") for n in FAST]
        if kind.filler:
            fillers.append(_submit(cluster, BLOCKED_BY, *kind.filler, comment=""))
        if name == "reservation":
            _reserve(cluster)
        _await(lambda: _running(backend, [*fillers, *ends]) == len(fillers) + len(ends))
        _block(cluster, kind, jobs)
        # a short time limit lets Slurm's backfill start them before what waits for a job without one
        six = [_submit(cluster, WAITS_FOR, "--gres=gpu:1", "--time=10", "--mem=100M") for _ in range(OTHERS)]
        time.sleep(before_s)
        waiting = (j for j in backend.read_jobs() if j.user == BLOCKED_BY and j.state is JobState.PENDING)
        result.reasons = sorted({j.reason for j in waiting})
        cluster.run(["scancel", *ends])
        return _starts(backend, six, longest_s)
    finally:
        _clear(cluster, backend)


def _block(cluster: PrivateCluster, kind: Kind, jobs: int) -> None:
    if kind.array:  # the first one of them runs
        _submit(cluster, BLOCKED_BY, *kind.options, f"--array=0-{jobs}%1")
        return
    for _ in range(jobs):
        _submit(cluster, BLOCKED_BY, *kind.options)


def _starts(backend: CliBackend, jobs: list[str], longest_s: float) -> list[float | None]:
    """When each of the jobs starts, from now on."""
    began = time.monotonic()
    started: dict[str, float] = {}
    while len(started) < len(jobs) and time.monotonic() - began < longest_s:
        for job in backend.read_jobs():
            if job.job_id in jobs and job.state is not JobState.PENDING:
                started.setdefault(job.job_id, round(time.monotonic() - began, 1))
        time.sleep(0.5)
    return [started.get(job) for job in jobs]


def _submit(cluster: PrivateCluster, user: str, *options: str, comment: str = HADAR) -> str:
    argv = ["sbatch", "--parsable", "--requeue", "--output=/dev/null", "--open-mode=append", "--chdir=/tmp",
            *([f"--comment={comment}"] if comment else []), *options, "--wrap", "sleep 900"]  # fmt: skip
    done = as_user(cluster, user, argv)
    if done.returncode:
        raise click.ClickException(f"{' '.join(options)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _reserve(cluster: PrivateCluster) -> None:
    """An hour ahead, on the one node that nobody else needs: jobs without a time limit may not run into it."""
    cluster.run(
        [
            "scontrol",
            "create",
            "reservation",
            "ReservationName=later",
            f"Users={BLOCKED_BY}",
            f"Nodes={SLOW}",
            "StartTime=now+1hour",
            "Duration=60",
        ]
    )


def _running(backend: CliBackend, jobs: list[str]) -> int:
    return sum(j.job_id in jobs and j.state is JobState.RUNNING for j in backend.read_jobs())


def _await(condition: Callable[[], bool], longest_s: float = 60.0) -> None:
    deadline = time.monotonic() + longest_s
    while not condition():
        if time.monotonic() > deadline:
            raise click.ClickException(f"the cluster was not as it should be within {longest_s:g} s")
        time.sleep(0.2)


def _clear(cluster: PrivateCluster, backend: CliBackend) -> None:
    """An empty queue for the next one."""
    left = sorted({j.job_id.split("_")[0] for j in backend.read_jobs() if j.state.active})
    if left:
        cluster.run(["scancel", "--quiet", *left], check=False)
    cluster.wait_idle(60)
    cluster.run(["scontrol", "delete", "ReservationName=later"], check=False)


@contextlib.contextmanager
def _controller(cluster: PrivateCluster, round_s: float, settings: tuple[str, ...]) -> Iterator[None]:
    """``hadar run`` as the cluster's own user."""
    state = Path(tempfile.mkdtemp(prefix="state", dir=cluster.directory.parent))
    chosen = ("controller.mode=act", f"controller.round_s={round_s:g}", f"controller.state_dir={state}",
              "slurm.backend=cli", "predict.retrain_s=0", *settings)  # fmt: skip
    argv = [sys.executable, "-m", "slurm_hadar.cli.main", "run", *(w for s in chosen for w in ("--set", s))]
    daemon = Daemon(argv, cluster.env, state / "controller.log")
    daemon.keep_up()
    try:
        _await(lambda: "round 2 " in daemon.log.read_text(errors="replace"))
        yield
    finally:
        daemon.stop()


@click.command()
@click.option("--kind", default="all", show_default=True, type=click.Choice([*KINDS, "all"]))
@click.option("--jobs", default=24, show_default=True, help="How many are blocked.")
@click.option("--round-s", default=ROUND_S, show_default=True, help="Length of a round.")
@click.option("--set", "settings", multiple=True, help="More of the controller's settings, section.key=value.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write the figures as JSON too.")
def main(kind: str, jobs: int, round_s: float, settings: tuple[str, ...], report: Path | None) -> None:
    """Measure how long jobs that could start wait because of jobs that cannot."""
    if not may_act_as_others():
        raise click.ClickException("only root can submit jobs as several users; run this as root")
    found = []
    with stage() as cluster:
        for name in KINDS if kind == "all" else [kind]:
            found.append(measure(cluster, name, jobs, round_s, settings=settings))
            click.echo(_line(found[-1]))
            if report is not None:
                report.write_text(json.dumps([m.as_dict() for m in found], indent=1) + "\n")
    sys.exit(0 if all(m.ok for m in found) else 1)


def _line(m: Measured) -> str:
    return (
        f"{m.kind:<12} {m.jobs} blocked ({', '.join(m.reasons) or 'none'}): without a controller "
        f"{_spread(m.without_s)}, with rounds of {m.round_s:g} s {_spread(m.with_s)}; {m.in_time} of {OTHERS} in time"
    )


def _spread(seconds: list[float | None]) -> str:
    known = [s for s in seconds if s is not None]
    return f"{len(known)} of {len(seconds)}" + (f" after {min(known):.1f} to {max(known):.1f} s" if known else "")


if __name__ == "__main__":
    main()
