"""Between HTTP and workers: every accepted request waits here until it is answered, or refused with a reason."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.scheduling.distribution import Distribution
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name, scheduler
from slurm_hadar.serving.scheduling.request import Batch, Request, Worker
from slurm_hadar.serving.scheduling.scheduler import Scheduler
from slurm_hadar.serving.server.accepted import Accepted, Answer
from slurm_hadar.serving.server.metrics import Outcome, ServingMetrics
from slurm_hadar.serving.server.model import ModelInfo
from slurm_hadar.serving.server.model_facts import ModelFacts
from slurm_hadar.serving.server.protocol import Asked
from slurm_hadar.serving.server.scaler import SEEN_S, Scaler
from slurm_hadar.serving.server.wanted import WantedWorkers
from slurm_hadar.serving.server.wire import pack
from slurm_hadar.serving.server.workers.pool import Pool, WorkerEvents
from slurm_hadar.serving.server.workers.seats import seats_here
from slurm_hadar.serving.simulation.scaling import Bounds, Scaling

__all__ = ["Dispatcher", "DispatcherOptions"]

_MARGIN_S = 0.001  # of a deadline, for the way back
_MOST_TAGS = 256
_OTHER = "other"
_LOOK_S = 0.5
_TRIES = 2


@dataclass(frozen=True)
class DispatcherOptions:
    """``workers``: how many, and the goal where that is left to the server. ``hang_s``: a worker whose batch takes
    longer, and ten times as long as expected, is killed and replaced."""

    source: str
    workers: Bounds
    slo_s: float
    policy: Name = Name.ORLOJ
    largest: int = 16
    queue: int = 1000
    queue_bytes: int = 1 << 30
    hang_s: float = 60.0


@dataclass(slots=True)
class _Running:
    batch: Batch
    started_s: float


class Dispatcher:
    """Lives in one event loop.

    Parameters
    ----------
    failed: told when there is no worker and none can be had.
    tell: given a line for each worker that is ready, or is lost.
    """

    def __init__(
        self,
        options: DispatcherOptions,
        metrics: ServingMetrics,
        failed: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self.options, self._metrics, self._failed, self._tell = options, metrics, failed, tell
        seats = seats_here()
        self._here = options.workers.here(len(seats))
        self._wanted = WantedWorkers(options.workers, self._here, SEEN_S, tell)
        events = WorkerEvents(self._message, self._gone, tell)
        self._pool = Pool(self._here, seats, [options.source, str(options.largest)], events)
        self._scaler = Scaler(options.policy, options.workers, self._setups, self._run_times, self._scale)
        # what a job was given is what it was found to want
        self._scaling = Scaling(self._here if self._wanted.has_agent else options.workers.least)
        self._scales: asyncio.Task[None] | None = None
        self._retiring: set[str] = set()  # end when their batch does
        self._scheduler: Scheduler | None = None
        self._models = ModelFacts()
        self._waiting: dict[int, Accepted] = {}
        self._running: dict[str, _Running] = {}
        self._idle: dict[Worker, None] = {}
        self._workers: dict[str, Worker] = {}
        self._numbers = itertools.count(1)
        self._tags: set[str] = set()
        self._bytes = 0
        self._broken: set[int] = set()  # places where a worker could not begin
        self._why: dict[str, str] = {}  # of workers that could not begin
        self._timer: asyncio.TimerHandle | None = None
        self._looker: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self.draining = False
        self.started_s = time.monotonic()

    # From the server

    @property
    def queued(self) -> int:
        """Requests that wait for a batch."""
        return 0 if self._scheduler is None else self._scheduler.queued

    def start(self) -> None:
        """Start the first workers, and look after them."""
        self._pool.start(self._places)
        self._look()
        if self.options.workers.least < self.options.workers.most:
            self._scales = asyncio.create_task(self._scaler.run(time.monotonic, lambda: self._scaling.wanted))
            self._scales.add_done_callback(self._scales_no_more)

    @property
    def ready(self) -> bool:
        """Whether there is a worker, and the server is not ending."""
        return bool(self._workers) and not self.draining

    @property
    def infos(self) -> Mapping[str, ModelInfo]:
        """The models by name, as the workers have told of them; empty before one is ready."""
        return self._models.infos

    def examples(self, model: str) -> list[tuple[str, dict[str, Any]]]:
        """Requests with their applications, as the model gave them."""
        return self._models.examples[model]

    def accept(self, model: str, asked: Asked, size: int) -> Accepted:
        """Queue a request; its future brings the answer, or a ServingError (504: the deadline cannot be met).
        ``size``: bytes that it holds while it waits. :meth:`release` must follow, whatever happens. Raises ServingError
        where it is refused at once: 429 for a full queue, 503 without workers or at the end."""
        now_s = time.monotonic()
        tag = self._tag(asked.application)
        deadline_s = self.options.slo_s if asked.deadline_s is None else asked.deadline_s
        self._scaler.arrived(now_s, deadline_s, model, tag)
        refusal = self._refusal(size)
        if refusal is not None:
            self._metrics.ended(model, tag, Outcome.REFUSED)
            raise refusal
        due_s = now_s + deadline_s - min(_MARGIN_S, 0.1 * deadline_s)
        request = Request(next(self._numbers), tag, now_s, due_s, model, asked.steps)
        accepted = Accepted(request, asked.inputs, asyncio.get_running_loop().create_future(), now_s, deadline_s, size)
        self._bytes += size
        self._enter(accepted, now_s)
        return accepted

    def answered(self, accepted: Accepted, answer: Answer) -> dict[str, Any]:
        """To be called once the answer is ready to be sent, which counts it: to encode a large one takes its time.
        Returns the request's trace, as its answer brings it."""
        total_s, request = time.monotonic() - accepted.accepted_s, accepted.request
        on_time = total_s <= accepted.deadline_s
        self._metrics.answered(request.model, request.application, total_s, on_time)
        return {
            "queued_ms": round(answer.queued_s * 1e3, 3), "batch": answer.batch, "ran_ms": round(answer.ran_s * 1e3, 3),
            "total_ms": round(total_s * 1e3, 3), "deadline_ms": round(accepted.deadline_s * 1e3, 3),
            "on_time": on_time, "worker": answer.worker,
        }  # fmt: skip

    def release(self, accepted: Accepted) -> None:
        """Its answer was taken, or nobody waits for it any more: then its place in the queue is free."""
        self._bytes -= accepted.size
        if not accepted.future.done() or accepted.future.cancelled():
            self._forget(accepted)
            self._metrics.ended(accepted.request.model, accepted.request.application, Outcome.ABANDONED)

    async def drain(self, seconds: float) -> None:
        """Accept nobody any more, and wait until all are answered; who is not by then is refused."""
        self.draining = True
        self._empty.clear()
        if self._waiting:
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                for waiting in list(self._waiting.values()):
                    self._refuse(waiting, ServingError("the server ended before it was this request's turn", 503))

    def close(self) -> None:
        """End the workers; whoever still waits is refused."""
        for timer in (self._timer, self._looker):
            if timer is not None:
                timer.cancel()
        if self._scales is not None:
            self._scales.cancel()
        self._scaler.close()
        for waiting in list(self._waiting.values()):
            self._refuse(waiting, ServingError("the server has ended", 503))
        self._pool.close()

    def status(self) -> dict[str, Any]:
        """What ``hadar serve status`` shows."""
        now_s, pids, nodes = time.monotonic(), self._pool.pids(), self._pool.nodes()
        return {
            "scheduler": str(self.options.policy), "slo_ms": self.options.slo_s * 1e3, "models": list(self.infos),
            "up_s": now_s - self.started_s, "draining": self.draining,
            "queued": self.queued, "queued_most": self.options.queue,
            "queued_bytes": self._bytes,
            "scaling": {
                "least": self.options.workers.least, "most": self.options.workers.most,
                "goal": self.options.workers.goal, "wanted": self._scaling.wanted,
                "here": self._here, "told": self._wanted.wanted,
                "expected": [{"workers": n, "finish_rate": rate} for n, rate in self._scaling.expected.items()],
            },
            "workers": [
                {"name": name, "pid": pid, "node": nodes[name],
                 "speed": self._workers[name].speed if name in self._workers else None,
                 "state": "starting" if name not in self._workers else "busy" if name in self._running else "idle",
                 "batch": len(self._running[name].batch.requests) if name in self._running else 0}
                for name, pid in sorted(pids.items())
            ],
            "applications": self._metrics.applications(),
        }  # fmt: skip

    # Requests

    def _tag(self, application: str) -> str:
        """Clients choose tags; there are no more than can be kept apart."""
        if application not in self._tags:
            if len(self._tags) >= _MOST_TAGS:
                return _OTHER
            self._tags.add(application)
        return application

    def _refusal(self, size: int) -> ServingError | None:
        if self.draining:
            return ServingError("the server is ending and accepts no more requests", 503)
        if self._scheduler is None or not self._pool.pids():
            return ServingError("no worker is ready yet", 503)
        if len(self._waiting) >= self.options.queue:
            return ServingError(f"{self.options.queue} requests wait already (--max-queue)", 429)
        if self._bytes + size > self.options.queue_bytes:
            return ServingError(f"requests that wait hold {self._bytes} bytes already", 429)
        return None

    def _enter(self, waiting: Accepted, now_s: float) -> None:
        assert self._scheduler is not None
        self._waiting[waiting.request.number] = waiting
        self._scheduler.arrive(waiting.request, now_s)
        self._pump(now_s)

    def _forget(self, waiting: Accepted) -> None:
        if self._waiting.pop(waiting.request.number, None) is not None and self._scheduler is not None:
            self._scheduler.withdraw(waiting.request)
        if not self._waiting:
            self._empty.set()

    def _refuse(self, waiting: Accepted, error: ServingError) -> None:
        self._forget(waiting)
        if not waiting.future.done():
            waiting.future.set_exception(error)
            self._metrics.ended(waiting.request.model, waiting.request.application, Outcome.REFUSED)

    # Batches

    def _pump(self, now_s: float) -> None:
        """Give up who cannot be met, give work to idle workers, and come back when the next must be given up."""
        assert self._scheduler is not None
        for request, why in self._scheduler.expire(now_s):
            waiting = self._waiting.get(request.number)
            if waiting is not None:
                self._refuse(waiting, ServingError(f"{why}, after {1e3 * (now_s - waiting.accepted_s):.0f} ms", 504))
        while self._idle and self._scheduler.queued:
            batch = self._scheduler.choose(now_s, self._idle)
            if batch is None:
                break
            self._send(batch, now_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        expiry_s = self._scheduler.next_expiry_s()  # at once for who was given up as a batch was looked for
        if expiry_s < float("inf"):
            self._timer = asyncio.get_running_loop().call_later(max(0.0, expiry_s - now_s) + 1e-4, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._pump(time.monotonic())

    def _send(self, batch: Batch, now_s: float) -> None:
        name, number = batch.worker.name, batch.requests[0].number
        del self._idle[batch.worker]
        self._running[name] = _Running(batch, now_s)
        self._metrics.batch(batch.model, len(batch.requests))
        header = {"model": batch.model, "batch": number}
        frames = pack(header, [self._waiting[request.number].inputs for request in batch.requests])
        self._pool.send(name, frames)  # where it fails the worker is gone, and _gone gives its requests to others

    # From workers

    def _message(self, name: str, header: dict[str, Any], groups: list[dict[str, Any]]) -> None:
        if header["kind"] == "ready":
            self._is_ready(name, header["models"], groups)
        elif header["kind"] == "failed":
            self._why[name] = header["why"]
        elif name in self._running and header["batch"] == self._running[name].batch.requests[0].number:
            self._done(name, self._running.pop(name), header["failures"], groups)

    def _is_ready(self, name: str, told: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
        now_s = time.monotonic()
        if self._scheduler is None:
            setups = self._models.learn(told, groups, self.options.largest, self.options.slo_s)
            self._tags.update(tag for of in told for tag in of["applications"])
            self._scheduler = scheduler(self.options.policy, setups)
            self._wanted.ready(now_s, now_s - self.started_s)
        worker = Worker(name, self._models.speed(told, self._workers.values()))
        self._workers[name] = worker
        self._pool.proved(name)
        self._staffed()
        self._tell(f"worker {name} is ready ({len(self._workers)} of {self._pool.places})")
        self._is_idle(worker)
        self._let_go()  # fewer may be wanted than when it was started
        self._pump(now_s)

    def _done(self, name: str, running: _Running, failures: Mapping[str, str], groups: list[dict[str, Any]]) -> None:
        assert self._scheduler is not None
        now_s, batch = time.monotonic(), running.batch
        ran_s = now_s - running.started_s
        self._is_idle(batch.worker)
        if not failures:
            self._scheduler.ended(batch, ran_s, now_s)
        for place, (request, outputs) in enumerate(zip(batch.requests, groups, strict=True)):
            waiting = self._waiting.get(request.number)
            if waiting is None:  # its client has gone
                continue
            if str(place) in failures:
                self._refuse(waiting, ServingError(f"the model fails on this request: {failures[str(place)]}", 500))
                continue
            self._forget(waiting)
            if waiting.future.done():  # its client is just going
                continue
            queued_s = running.started_s - waiting.accepted_s
            waiting.future.set_result(Answer(outputs, queued_s, len(batch.requests), ran_s, name))
        self._pump(now_s)
        asyncio.get_running_loop().call_soon(self._scheduler.refresh, now_s)  # behind what the pump has begun

    def _gone(self, name: str, why: str) -> None:
        """A worker's requests are tried once more, by another and each by itself, if there is time."""
        now_s = time.monotonic()
        worker, running = self._workers.pop(name, None), self._running.pop(name, None)
        if worker is not None:
            self._idle.pop(worker, None)
            self._retiring.discard(name)
            self._staffed()
            self._metrics.workers_lost.inc()
            self._tell(f"worker {name} {why}; another one is started")
        else:
            self._could_not_begin(name, self._why.pop(name, f"it {why}"))
        if running is not None:
            self._retry(running.batch, why, now_s)

    def _retry(self, batch: Batch, why: str, now_s: float) -> None:
        assert self._scheduler is not None
        for request in batch.requests:
            waiting = self._waiting.get(request.number)
            if waiting is None:
                continue
            if waiting.tries >= _TRIES or now_s >= request.last_s:
                self._refuse(waiting, ServingError(f"the worker that ran it {why}", 503))
                continue
            del self._waiting[request.number]
            waiting.tries += 1
            waiting.request = replace(request, number=next(self._numbers))
            self._waiting[waiting.request.number] = waiting
            self._scheduler.again(waiting.request)
        self._pump(now_s)

    def _could_not_begin(self, name: str, why: str) -> None:
        """Where no worker ever was ready, and one has failed in each place, the fault is the model's. In some places
        alone it is theirs: others may load for longer than it takes to fail there again and again."""
        self._broken.add(self._pool.place(name))
        if self._scheduler is None and len(self._broken) >= self._places:
            self._failed(f"no worker could begin: {why}")
        else:
            self._tell(f"worker {name} could not begin, another one is started: {why}")

    # How many workers

    def _setups(self) -> Mapping[str, Setup]:
        return {} if self._scheduler is None else {m: p.setup for m, p in self._scheduler.policies.items()}

    def _run_times(self, model: str, application: str) -> Distribution:
        assert self._scheduler is not None
        return self._scheduler.policies[model].run_times(application)

    @property
    def _places(self) -> int:
        """Workers that there should be here."""
        return min(self._scaling.wanted, self._here)

    def _scale(self, found: Scaling) -> None:
        """As many as are wanted; those that are too many end when they are idle, and nobody waits longer for it."""
        if found.wanted != self._scaling.wanted:
            rate = found.expected.get(found.wanted, 1.0)
            room = f" (room for {self._here})" if found.wanted > self._here else ""
            before = self._scaling.wanted
            self._tell(f"workers: {found.wanted} instead of {before}{room}: {rate:.1%} are expected in time")
        self._scaling = found
        self._wanted.look(found, time.monotonic())
        self._metrics.expected.set(found.expected.get(found.wanted, 1.0))
        if self.draining:
            return
        self._retiring.clear()
        missing = self._places - self._pool.places
        if missing > 0:
            self._pool.add(missing)
        self._let_go()

    def _scales_no_more(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._tell(f"the number of workers stays as it is: {task.exception()!r}")

    def _let_go(self) -> None:
        """Of those that are too many: first who is not ready yet, then who is idle, others when their batch ends."""
        surplus = self._pool.places - self._places - len(self._retiring)
        ordered = sorted(self._pool.pids(), key=lambda n: (n in self._workers, n in self._running))
        for name in [n for n in ordered if n not in self._retiring][: max(0, surplus)]:
            self._retiring.add(name)
            if name not in self._running:
                self._retire(name)

    def _is_idle(self, worker: Worker) -> None:
        if worker.name in self._retiring:
            self._retire(worker.name)
        else:
            self._idle[worker] = None

    def _retire(self, name: str) -> None:
        self._retiring.discard(name)
        worker = self._workers.pop(name, None)
        if worker is not None:
            self._idle.pop(worker, None)
            self._staffed()
        self._pool.retire(name)

    def _staffed(self) -> None:
        """Some worker is ready, or is no longer."""
        self._metrics.workers.set(len(self._workers))
        if self._scheduler is not None:
            self._scheduler.equip(self._workers.values())

    def _look(self) -> None:
        """Workers that hang are ended."""
        now_s = time.monotonic()
        for name, running in list(self._running.items()):  # one on another node is gone at once, which changes them
            if now_s - running.started_s > max(self.options.hang_s, 10 * running.batch.expected_s):
                self._pool.kill(name, f"hung for {now_s - running.started_s:.0f} s and was killed")
        self._looker = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
