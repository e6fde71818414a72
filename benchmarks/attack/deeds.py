"""What the hostile users do, drawn at random: with sbatch, scontrol, scancel, and on the channel."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import resource
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import zmq

from benchmarks.attack.people import HOSTILE
from benchmarks.attack.stage import NODES, Stage
from benchmarks.attack.vocabulary import COMMENTS, ONE, OPTIONS, SCRIPTS, SIZES, UPDATES, VERBS
from benchmarks.chaos.post import send_bad_messages
from slurm_hadar.errors import SlurmError
from slurm_hadar.messages import ChannelInfo, Report, encode, token_fingerprint
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["KINDS", "Asked", "Deeds"]

MOST_ACTIVE = 60  # of the hostile users' jobs: the queue is to be full, not endless
CONNECTIONS = 1100


@dataclass(frozen=True)
class Asked:
    """A start time or hold that an owner or an administrator gave a job at ``when``; ``value`` is the epoch second, 0
    for a hold."""

    job: str
    value: float
    when: float


@dataclass
class Deeds:
    """``done`` counts deeds by kind, ``refused`` those that Slurm refused; ``asked`` are start times and holds that
    must stay as they are; ``touched`` the jobs of which more was said after their submission; ``shapes`` what each of
    the others was submitted as."""

    stage: Stage
    rng: random.Random
    honest: Callable[[], set[str]]
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    asked: dict[str, Asked] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    shapes: dict[str, SlurmJob] = field(default_factory=dict)
    messages: int = 0
    _jobs: dict[str, list[str]] = field(default_factory=lambda: {user: [] for user in HOSTILE})
    _suspended: list[str] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def go_on(self, until: float, every_s: float) -> None:
        """One deed after the other until the monotonic time ``until``."""
        while time.monotonic() < until:
            deed = self.rng.choices([d for d, _ in KINDS], [weight for _, weight in KINDS])[0]
            with contextlib.suppress(SlurmError):
                deed(self)
            time.sleep(every_s * self.rng.uniform(0.2, 1.8))

    def _count(self, kind: str, ok: bool = True) -> None:
        (self.done if ok else self.refused)[kind] += 1

    # sbatch

    def submit(self) -> None:
        """A job with options, a comment and a script of some kind each."""
        user = self.rng.choice(HOSTILE)
        what = self.rng.choice(sorted(OPTIONS))
        comment = self.rng.choice((*COMMENTS, "well-formed", "well-formed"))
        script = self.rng.choice((*SCRIPTS, "sleeps", "sleeps"))
        if len(self._active()) > MOST_ACTIVE:
            self._storm_of(user)
            return
        earlier = self._jobs[user][-1] if self._jobs[user] else "1"
        options = [o.replace("%", earlier) if o.startswith("--dependency") else o for o in OPTIONS[what]]
        body = SCRIPTS[script].replace("RATES", self._rates()) + f"sleep {self.rng.randrange(3, 25)}\n"
        said = [f"--comment={COMMENTS[comment]}"] if COMMENTS[comment] else []
        job = self.stage.sbatch(user, body, "--requeue", *said, *options)
        if job:
            self._jobs[user].append(job)
            shape = next((j for j in self.stage.backend.read_jobs() if j.job_id.split("_")[0] == job), None)
            if shape is not None:
                self.shapes[job] = shape
        for kind in (f"sbatch: {what}", f"comment: {comment}", f"script: {script}"):
            self._count(kind, bool(job))

    @staticmethod
    def _rates() -> str:
        """Shell commands that write reports with speeds that no job can have."""
        fields = '\\"version\\":1,\\"kind\\":\\"report\\",\\"job\\":\\"$SLURM_JOB_ID\\",\\"restart\\":0'
        fields += ',\\"token\\":\\"' + 64 * "b" + '\\",\\"time\\":1,\\"node\\":\\"n\\"'
        lines = "; ".join(
            f'echo "{{{fields},\\"seq\\":{i + 1},\\"steps\\":{i},\\"steps_per_s\\":{rate}}}" >> $D/spool.jsonl'
            for i, rate in enumerate(("0", "5e-324", "1e12", "1e300", "0.0"))
        )
        key = token_fingerprint(64 * "b")
        return f'{lines}; scontrol update JobId=$SLURM_JOB_ID Comment="hadar:model=resnet18,batch=64,key={key}"; '

    # scontrol and scancel

    def _active(self) -> list[SlurmJob]:
        return [j for j in self.stage.backend.read_jobs() if j.user in HOSTILE and j.state.active]

    def _victim(self, *states: JobState) -> SlurmJob | None:
        found = [j for j in self._active() if not states or j.state in states]
        return self.rng.choice(found) if found else None

    def update(self) -> None:
        """What owners may say of their own jobs."""
        job = self._victim(JobState.PENDING)
        if job is None:
            return
        kind = self.rng.choice((*UPDATES, "start time", "start time"))
        by = self.rng.choice((job.user, job.user, job.user, "root")) if kind not in SIZES else job.user
        self._tell(by, job, f"update JobId={job.job_id} {UPDATES[kind]}", f"scontrol update: {kind}", kind)

    def command(self) -> None:
        job = self._victim(JobState.PENDING, JobState.RUNNING)
        if job is not None:
            verb = self.rng.choice((*VERBS, "hold"))
            by = self.rng.choice((job.user, job.user, "root"))
            self._tell(by, job, f"{verb} {job.job_id}", f"scontrol {verb}", verb)

    def _tell(self, by: str, job: SlurmJob, line: str, kind: str, what: str) -> None:
        self.asked.pop(job.job_id, None)
        self.touched.add(job.job_id.split("_")[0])
        code, _, _ = self.stage.run_as(by, "scontrol", given=line + "\n")
        self._count(f"{kind}{' by the administrator' if by == 'root' else ''}", code == 0)
        if code == 0 and what in ("start time", "hold") and job.state is JobState.PENDING:
            self._remember(job.job_id, what)

    def _remember(self, job_id: str, what: str) -> None:
        """What Slurm now shows of it, which must stay so."""
        now = next((j for j in self.stage.backend.read_jobs() if j.job_id == job_id), None)
        if now is None or now.state is not JobState.PENDING:
            return
        if what == "hold" and now.held:
            self.asked[job_id] = Asked(job_id, 0.0, time.time())
        if what == "start time" and now.eligible is not None and now.eligible > time.time() + 400:
            self.asked[job_id] = Asked(job_id, now.eligible, time.time())

    def suspend(self) -> None:
        """By the administrator: what runs is suspended, what is suspended goes on."""
        if self._suspended and self.rng.random() < 0.6:
            job_id = self._suspended.pop()
            self._count("resume by the administrator", self.stage.run_as("root", "scontrol", "resume", job_id)[0] == 0)
            return
        job = self._victim(JobState.RUNNING)
        if job is not None and self.stage.run_as("root", "scontrol", "suspend", job.job_id)[0] == 0:
            self._suspended.append(job.job_id)
            self._count("suspend by the administrator")

    def resume_all(self) -> None:
        for job_id in self._suspended:
            self.stage.run_as("root", "scontrol", "resume", job_id)

    def signal(self) -> None:
        job = self._victim(JobState.RUNNING)
        if job is not None:
            name = self.rng.choice(("USR1", "USR2", "TERM", "STOP", "CONT", "INT"))
            code, _, _ = self.stage.run_as(job.user, "scancel", f"--signal={name}", "--full", job.job_id)
            self._count(f"signal {name}", code == 0)

    def storm(self) -> None:
        """An array that is cancelled while a round goes on."""
        user = self.rng.choice(HOSTILE)
        job = self.stage.sbatch(
            user, "sleep 60\n", ONE, "--array=0-29", "--requeue", f"--comment={COMMENTS['well-formed']}"
        )
        time.sleep(self.rng.uniform(0.5, 4.0))
        code, _, _ = self.stage.run_as(user, "scancel", job or "1")
        self._count("array of 30 cancelled", code == 0 and bool(job))

    def _storm_of(self, user: str) -> None:
        self.stage.run_as(user, "scancel", "-u", user)
        self._count("all jobs of a user cancelled")

    def reserve(self) -> None:
        """A node is reserved for a while, as for maintenance; jobs that run there go on."""
        node = self.rng.choice(_nodes())
        name = f"work{next(self._numbers)}"
        words = (f"ReservationName={name}", "Users=root", f"Nodes={node}", "StartTime=now", "Duration=1",
                 "Flags=IGNORE_JOBS")  # fmt: skip
        code, _, _ = self.stage.run_as("root", "scontrol", "create", "reservation", *words)
        self._count("reservation by the administrator", code == 0)
        threading.Timer(self.rng.uniform(4.0, 12.0), self._free, (name,)).start()

    def _free(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self.stage.run_as("root", "scontrol", "delete", f"ReservationName={name}")

    # The channel

    def garbage(self) -> None:
        info = self.stage.channel_info()
        if info is not None:
            self.messages += send_bad_messages(info, {}, self.rng)
            self._count("garbage on the channel")

    def flood(self) -> None:
        """Reports for jobs that there are not, as fast as they go."""
        sent, until = 0, time.monotonic() + 2.0
        with self._client() as client:
            while client is not None and time.monotonic() < until:
                job, token = str(self.rng.randrange(10**5, 10**8)), secrets.token_hex(32)
                report = Report("report", job, 0, 1, token, time.time(), "n", steps=1)
                sent += self._send(client, encode(report))
        self.messages += sent
        self._count("flood of unknown jobs", sent > 0)

    def steal(self) -> None:
        """Speak first for the honest jobs."""
        with self._client() as client:
            for job in sorted(self.honest()):
                if client is None:
                    break
                hello = Report("hello", job, 0, 1, secrets.token_hex(32), time.time(), "n", resumable=True)
                lie = dataclasses.replace(hello, kind="report", seq=10**15, steps=10**9, total_steps=10**9)
                self.messages += self._send(client, encode(hello)) + self._send(client, encode(lie))
        self._count("speaks first for others' jobs")

    def promise(self) -> None:
        """A running job says by its own token that it can save, and never does."""
        job = self._victim(JobState.RUNNING)
        if job is None or job.het_id:
            return
        token = secrets.token_hex(32)
        comment = f"hadar:model=resnet18,batch=64,steps=100000,key={token_fingerprint(token)}"
        self.touched.add(job.job_id.split("_")[0])
        self.stage.run_as(job.user, "scontrol", given=f"update JobId={job.job_id} Comment={comment}\n")
        with self._client() as client:
            for seq in range(1, 6):
                if client is None:
                    break
                report = Report(
                    "hello" if seq == 1 else "report",
                    job.job_id,
                    job.restarts,
                    seq,
                    token,
                    time.time(),
                    "n",
                    steps=seq,
                    total_steps=10**5,
                    steps_per_s=self.rng.choice((0.5, 100.0, 1e4)),
                    resumable=True,
                )
                self.messages += self._send(client, encode(report))
                time.sleep(0.1)
        self._count("promises to save and never does")

    def idle(self) -> None:
        """More connections than a process may have files, kept for some seconds."""
        info = self.stage.channel_info()
        if info is None:
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * CONNECTIONS)), hard))
        host, port = info.address.removeprefix("tcp://").rsplit(":", 1)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for _ in range(CONNECTIONS):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=2.0))
            time.sleep(self.rng.uniform(2.0, 8.0))
        self._count(f"{CONNECTIONS} idle connections")

    @contextlib.contextmanager
    def _client(self) -> Iterator[zmq.Socket[bytes] | None]:
        """A connection to the channel with a key of its own; None where nobody listens."""
        info: ChannelInfo | None = self.stage.channel_info()
        if info is None:
            yield None
            return
        client: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        client.setsockopt(zmq.LINGER, 200)
        client.setsockopt(zmq.SNDTIMEO, 200)
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.curve_serverkey = info.public_key.encode()
        client.connect(info.address)
        try:
            yield client
        finally:
            client.close()

    @staticmethod
    def _send(client: zmq.Socket[bytes], data: bytes) -> int:
        with contextlib.suppress(zmq.Again):
            client.send(data)
            return 1
        return 0


KINDS: tuple[tuple[Callable[[Deeds], None], int], ...] = (
    (Deeds.submit, 40), (Deeds.update, 12), (Deeds.command, 8), (Deeds.suspend, 3), (Deeds.signal, 3),
    (Deeds.storm, 3), (Deeds.reserve, 2), (Deeds.garbage, 2), (Deeds.flood, 1), (Deeds.steal, 3), (Deeds.promise, 3),
    (Deeds.idle, 1),
)  # fmt: skip


def _nodes() -> list[str]:
    groups = (group.replace("x", ":").split(":") for group in NODES.split(","))
    return [f"{gpu}-{i + 1}" for gpu, count, _ in groups for i in range(int(count))]
