"""The queue through pyslurm, where pyslurm matches the site's libslurm; the commands do all else.

pyslurm cannot clear node lists, change node counts or set a user's hold, and does not show ``--gpus`` requests without
slurmdbd, nor all that a job asks of its nodes or a node has, nor which of a node's GPUs are given away in parts.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from slurm_hadar.errors import SlurmError, SlurmParseError, SlurmUnavailable
from slurm_hadar.slurm import parsing, tres
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.node_lists import expand
from slurm_hadar.slurm.state import NOTHING_MORE, Fittings, GpuRequest, SlurmJob

__all__ = ["PyslurmBackend", "probe"]

_Identity = tuple[str, float | None, int, bool]
_PROBE_S = 15.0
# -P: what lies in the working directory, of whoever asks, is none of our modules
_WORKER = [sys.executable, "-P", "-m", "slurm_hadar.slurm.backend.pyslurm_worker"]


def probe(env: dict[str, str] | None = None) -> str | None:
    """Why pyslurm cannot be used here (or in ``env``); None if it can. Never imports it into this process."""
    try:
        importlib.metadata.version("pyslurm")
    except importlib.metadata.PackageNotFoundError:
        return "pyslurm is not installed"
    worker = _Worker(_PROBE_S, env)
    try:
        worker.start()
    except SlurmError as error:
        return str(error)
    finally:
        worker.stop()
    return None


class _Worker:
    """The reading process: started when needed, ended when it hangs or dies."""

    def __init__(self, timeout_s: float, env: dict[str, str] | None = None) -> None:
        self._timeout_s = timeout_s
        self._env = dict(os.environ if env is None else env)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            _WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, env=self._env
        )
        first = self._line("import pyslurm")
        if "ready" not in first:
            self.stop()
            raise SlurmUnavailable(f"pyslurm cannot be used: {first.get('error', first)}")

    def jobs(self) -> list[dict[str, Any]]:
        """What pyslurm has of each job."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(b"jobs\n")
        except BrokenPipeError:
            self.stop()
            raise SlurmUnavailable("the pyslurm reader ended; is slurmctld up?") from None
        answer = self._line("jobs")
        if "error" in answer:
            raise SlurmUnavailable(f"pyslurm: {answer['error']}")
        return list(answer["jobs"])

    def _line(self, request: str) -> dict[str, Any]:
        """One line of JSON, or SlurmUnavailable when it does not come in time."""
        assert self._process is not None and self._process.stdout is not None
        data = bytearray()
        deadline = time.monotonic() + self._timeout_s
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self._process.stdout], [], [], left)[0]
            chunk = self._process.stdout.read(1 << 20) if ready else b""
            if not chunk:
                self.stop()
                cause = "ended" if ready else f"did not answer {request!r} within {self._timeout_s:g} s"
                raise SlurmUnavailable(f"the pyslurm reader {cause}; is slurmctld up and slurm.conf readable?")
            data += chunk
        try:
            return dict(json.loads(data))
        except ValueError as error:
            raise SlurmParseError(f"the pyslurm reader sent no JSON: {error}") from None

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        process.kill()
        process.wait()


class _Told(NamedTuple):
    """What the commands tell of a job."""

    gpus: tuple[GpuRequest, ...] = ()
    asks: Fittings = NOTHING_MORE
    cpus_per_gpu: int = 0
    by_user: bool = False
    mcs: str = ""
    tasks_per_node: int = 0
    tasks_per_socket: int = 0
    switches: int = 0

    @classmethod
    def of(cls, job: SlurmJob) -> _Told:
        return cls(*(getattr(job, name) for name in cls._fields))


class PyslurmBackend(CliBackend):
    """Reads the queue through pyslurm."""

    name = "pyslurm"

    def __init__(self, timeout_s: float = 30.0, retries: int = 2, env: dict[str, str] | None = None) -> None:
        super().__init__(timeout_s, retries, env)
        self._worker = _Worker(timeout_s, env)
        self._told: dict[_Identity, _Told] = {}

    def close(self) -> None:
        self._worker.stop()

    def each_job(self) -> Iterator[SlurmJob]:
        return iter(self._jobs(self._retry(self._worker.jobs)))

    def _details(self) -> dict[str, parsing.Details]:
        return {}  # they are in what pyslurm reads

    def _with_throttles(self, jobs: tuple[SlurmJob, ...]) -> tuple[SlurmJob, ...]:
        return jobs  # so are these

    def _jobs(self, records: list[dict[str, Any]]) -> tuple[SlurmJob, ...]:
        """``--gpus`` and ``--gpus-per-task`` do not show here without slurmdbd, neither alone nor beside ``--gres``:
        the commands are asked for them while a job shows no GPUs at all, and once for each new job, as for what else it
        asks of its nodes; and once more when its CPUs turn out to be counted by GPUs."""
        jobs = [job for record in records for job in _expand(record)]
        by_gpu = {r["id"] for r in records if r["by_gpu"]}
        active = {_identity(j, by_gpu): j for j in jobs if j.state.active}
        known: dict[str, SlurmJob] = {}
        if any(not j.gpus or key not in self._told for key, j in active.items()):
            known = {j.job_id: j for j in super().each_job()}
        told = {key: _Told.of(known[j.job_id]) for key, j in active.items() if j.job_id in known}
        self._told = {key: told.get(key, self._told.get(key, _Told())) for key in active}
        return tuple(self._complete(j, self._told.get(_identity(j, by_gpu), _Told()), known) for j in jobs)

    def _complete(self, job: SlurmJob, told: _Told, known: dict[str, SlurmJob]) -> SlurmJob:
        job = replace(job, **{name: value for name, value in told._asdict().items() if name != "gpus"})
        if job.exclusive and self._tells_exclusive:  # its word for it then stands for all jobs: learned by trying
            job = replace(job, exclusive=False)
        if len(told.gpus) > 1:
            return replace(job, gpus=told.gpus)
        if not job.gpus and job.job_id in known:
            return replace(job, gpus=known[job.job_id].gpus, shares=known[job.job_id].shares)
        return job


def _identity(job: SlurmJob, by_gpu: Collection[int]) -> _Identity:
    """Tells a job from a later one of the same id, from itself before a requeue, and before its CPUs were counted by
    GPUs."""
    return job.job_id, job.submit, job.restarts, job.raw_id in by_gpu


def _expand(r: dict[str, Any]) -> list[SlurmJob]:
    """One job, or one per waiting task where the record stands for the rest of an array. One that is not understood
    says so."""
    try:
        return _expanded(r)
    except (SlurmParseError, ArithmeticError, KeyError, TypeError, ValueError) as error:
        job_id, user, nodes, state, name, comment = (
            str(r.get(k) or "") for k in ("id", "user", "nodes", "state", "name", "comment")
        )
        return [parsing.unreadable(job_id, user, nodes, state, name, comment, str(error))]


def _expanded(r: dict[str, Any]) -> list[SlurmJob]:
    if r["array_id"] and r["array_task"] is None and r["waiting"]:
        tasks = expand(f"[{r['waiting'].split('%')[0]}]")
        return [_job(r, f"{r['array_id']}_{task}") for task in tasks]
    if r["array_id"] and r["array_task"] is not None:
        return [_job(r, f"{r['array_id']}_{r['array_task']}")]
    if r["het_id"]:
        return [_job(r, f"{r['het_id']}+{r['het_offset'] or 0}")]
    return [_job(r, str(r["id"]))]


def _job(r: dict[str, Any], job_id: str) -> SlurmJob:
    state = str(r["state"])
    limit = r["time_limit"]
    nodes = r["num_nodes"] or 1
    return SlurmJob(
        job_id=job_id,
        raw_id=r["id"],
        state=parsing.job_state(state, job_id),
        state_text=state,
        reason=tres.text_or_empty(r["reason"] or ""),
        user=r["user"] or "",
        account=(r["account"] or "").strip(),  # as the commands are read
        qos=r["qos"] or "",
        partition=r["partition"] or "",
        nodes=expand(r["nodes"] or ""),
        req_nodes=expand(r["req_nodes"] or ""),
        features=r["features"] or "",
        gpus=_request(r["gres"]),
        num_nodes=nodes,
        max_nodes=r["max_nodes"] or nodes,
        num_tasks=r["num_tasks"] or 1,
        num_cpus=r["num_cpus"] or 1,
        time_limit_s=float(limit) * 60 if isinstance(limit, int) else None,
        submit=r["submit"],
        eligible=r["eligible"],
        start=r["start"],
        end=r["end"],
        requeue=r["requeue"],
        restarts=r["restarts"] or 0,
        batch=r["batch"],
        priority=r["priority"] or 0,
        dependency=r["dependency"] or "",
        array_id=str(r["array_id"]) if "_" in job_id else None,
        het_id=str(r["het_id"]) if r["het_id"] else None,
        work_dir=r["work_dir"] or "",
        name=r["name"] or "",
        comment=r["comment"] or "",
        uid=r["uid"],
        memory_bytes=(r["memory"] or 0) << 20,
        exclusive=str(r["sharing"] or "").lower() == "no",
        licenses=r["licenses"] or "",
        reservation=r["reservation"] or "",
        exc_nodes=expand(r["exc_nodes"] or ""),
        throttle=r["throttle"] or None,
        sched_nodes=expand(r["sched_nodes"] or ""),
        deadline=r["deadline"],
    )


def _request(gres: dict[str, int]) -> tuple[GpuRequest, ...]:
    types: dict[str, int] = {}
    for name, n in gres.items():
        kind, _, gpu_type = name.removeprefix("gres/").partition(":")
        if kind == "gpu":
            types[gpu_type] = types.get(gpu_type, 0) + int(n)
    return (GpuRequest("node", tuple(sorted(types.items()))),) if types else ()
