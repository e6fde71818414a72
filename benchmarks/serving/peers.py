"""The server against Ray Serve and LitServe: the same models, the same open-loop load, one after the other.

Every server has one worker with one thread of PyTorch. Peers are tuned by a sweep over batch sizes and waiting times,
then their load is raised until half of the requests are late; there, and where little comes, they and ours are asked in
turn. What was measured is kept at once, and not measured again.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.serving.peer_ray import SOURCES, built
from slurm_hadar.serving.load import run_load
from slurm_hadar.serving.trace import intended_of

__all__ = ["MIXES", "compare"]

MIXES: Mapping[str, Mapping[str, float]] = {
    "slept": {"short": 80.0, "long": 20.0},
    "texts": {"tweet": 80.0, "article": 20.0},
    "exits": {"clear": 80.0, "blurred": 20.0},
}
_PORT = 8670
_SLO = 3.0  # times of the longest application alone
_HARD = 0.8  # finish rate without batches under which the sweep is made
#: Where little comes; the early exits take a millisecond or two, so that the peers themselves are what is loaded.
_CALM: Mapping[str, float] = {"slept": 0.1, "texts": 0.1, "exits": 0.02}
_LOADS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.9, 1.1, 1.4, 1.8, 2.4)
_TURNS = 3
_SWEEP: Sequence[tuple[int, float]] = ((1, 0.0), (4, 0.0), (16, 0.0), (4, 0.005), (16, 0.005))
_GOAL = 0.6  # finish rate of a peer at which ours is compared
_HALVED = 2  # so often is looked between two loads for it
_NEAR, _RAISED, _MORE = 0.1, 4, 1.2

Kept = dict[str, Any]
_Switch = Callable[[int, float], str]  # to a configuration; its address


def compare(model: str, seconds: float, kept: Kept, keep: Callable[[Kept], None]) -> Kept:
    """Figures by server and load, and from them ours over theirs. ``kept``: what an earlier run has measured."""
    if "alone_s" not in kept:
        kept["alone_s"] = _alone(model)
        keep(kept)
    _Comparison(model, seconds, kept, keep).run()
    kept["ratios"] = {peer: _ratios(kept, peer, _CALM[model]) for peer in ("Ray Serve", "LitServe")}
    keep(kept)
    return kept


def _alone(model: str) -> dict[str, float]:
    """Seconds of one request in this process, by application: the least, as others may be at work on the machine."""
    found: dict[str, float] = {}
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    served = built(model)
    for application, requests in served.examples().items():
        took = []
        for _ in range(4):
            for request in requests:
                began = time.perf_counter()
                served.infer([request])
                took.append(time.perf_counter() - began)
        found[application] = min(took)
    return found


class _Comparison:
    def __init__(self, model: str, seconds: float, kept: Kept, keep: Callable[[Kept], None]) -> None:
        self._model, self._seconds, self._kept, self._keep = model, seconds, kept, keep
        mix = MIXES[model]
        alone = kept["alone_s"]
        self._mean_s = sum(alone[a] * w for a, w in mix.items()) / sum(mix.values())
        self._slo_s = _SLO * max(alone.values())
        self._examples = {
            application: [{"inputs": _json(request)} for request in requests]
            for application, requests in built(model).examples().items()
        }
        kept.setdefault("figures", {})

    def run(self) -> None:
        peers: list[tuple[str, Callable[[], Any]]] = [("Ray Serve", self._ray), ("LitServe", self._litserve)]
        for peer, start in peers:
            with start() as switch, self._hadar() as ours:
                self._duel(peer, *self._tuned(peer, switch), switch, ours)

    def _tuned(self, peer: str, switch: _Switch) -> tuple[tuple[int, float], float]:
        """Its best configuration, and the load at which its finish rate is then nearest to the goal."""

        def rate(config: tuple[int, float], load: float) -> float:
            batch, wait_s = config
            return self._measure(f"{peer} {batch} {wait_s:g}", load, 1, lambda: switch(batch, wait_s))

        loads = [load for load in _LOADS if load > _CALM[self._model]]
        hard = next((load for load in loads if rate(_SWEEP[0], load) < _HARD), loads[-1])
        best = max(_SWEEP, key=lambda config: rate(config, hard))
        found: dict[float, float] = {}
        for load in loads:
            found[load] = rate(best, load)
            if found[load] < _GOAL:
                break
        for _ in range(_HALVED):
            below = min((at for at in found if found[at] < _GOAL), default=None)
            above = max((at for at in found if found[at] >= _GOAL), default=None)
            if below is None or above is None or above > below:
                break
            load = round((below + above) / 2, 3)
            found[load] = rate(best, load)
        self._kept.setdefault("configured", {})[peer] = {"max_batch_size": best[0], "wait_s": best[1]}
        return best, min(found, key=lambda load: abs(found[load] - _GOAL))

    def _duel(self, peer: str, best: tuple[int, float], load: float, switch: _Switch, ours: _Switch) -> None:
        """In turn, as what else the machine does changes. Where that is kinder to the peer than its tuning was, the
        load is raised until its finish rate is near the goal."""
        self._turns(peer, best, _CALM[self._model], switch, ours)
        for _ in range(_RAISED):
            self._kept.setdefault("duel_at", {})[peer] = load
            if self._turns(peer, best, load, switch, ours) < _GOAL + _NEAR:
                break
            load = round(_MORE * load, 3)

    def _turns(self, peer: str, best: tuple[int, float], load: float, switch: _Switch, ours: _Switch) -> float:
        """The peer's mean finish rate."""
        rates = []
        for turn in range(_TURNS):
            rates.append(self._measure(f"{peer} duel", load, 100 + turn, lambda: switch(*best)))
            self._measure(f"hadar serve against {peer}", load, 100 + turn, lambda: ours(0, 0.0))
        return statistics.fmean(rates)

    def _measure(self, server: str, load: float, seed: int, ready: Callable[[], str]) -> float:
        """The finish rate."""
        figures = self._kept["figures"].setdefault(server, {})
        cell = f"{load:g} {seed}"
        if cell not in figures:
            url, mix = ready(), MIXES[self._model]
            for seconds, drawn in ((1.5, 0), (self._seconds, seed)):  # the first is not counted
                spec = f"poisson:rate={load / self._mean_s:g},seconds={seconds:g},seed={drawn}"
                told = run_load(url, self._model, intended_of(spec, self._slo_s, mix), self._examples).summary()
            figures[cell] = {k: told[k] for k in ("finish_rate", "requests", "latency_p50_ms", "sending_lag_ms_p99")}
            print(f"{self._model}: {server}, {cell}: {told['finish_rate']:.3f} of {told['requests']}", flush=True)
            self._keep(self._kept)
        rate: float = figures[cell]["finish_rate"]
        return rate

    @contextmanager
    def _ray(self) -> Iterator[Callable[[int, float], str]]:
        process: subprocess.Popen[str] | None = None
        running: list[tuple[int, float]] = []

        def switch(batch: int, wait_s: float) -> str:
            nonlocal process
            if process is None:
                process = _started(["benchmarks.serving.peer_ray", self._model, str(_PORT)])
            if running[-1:] != [(batch, wait_s)]:
                assert process.stdin is not None
                process.stdin.write(json.dumps({"batch": batch, "wait_s": wait_s}) + "\n")
                process.stdin.flush()
                _until(process, "ready", drain=False)  # it will say so again
                running.append((batch, wait_s))
            return f"http://127.0.0.1:{_PORT}"

        try:
            yield switch
        finally:
            if process is not None:
                assert process.stdin is not None
                process.stdin.close()  # it ends Ray and itself
                _wait(process)

    @contextmanager
    def _litserve(self) -> Iterator[Callable[[int, float], str]]:
        running: dict[tuple[int, float], subprocess.Popen[str]] = {}

        def switch(batch: int, wait_s: float) -> str:
            if (batch, wait_s) not in running:
                for process in running.values():
                    _end(process)
                running.clear()
                port = str(_PORT + 1)
                running[batch, wait_s] = _started(
                    ["benchmarks.serving.peer_litserve", self._model, port, str(batch), str(wait_s)]
                )
                _until(running[batch, wait_s], "ready")
                time.sleep(2)  # it listens once its worker has said so
            return f"http://127.0.0.1:{_PORT + 1}"

        try:
            yield switch
        finally:
            for process in running.values():
                _end(process)

    @contextmanager
    def _hadar(self) -> Iterator[Callable[[int, float], str]]:
        process: subprocess.Popen[str] | None = None

        def switch(_batch: int, _wait_s: float) -> str:
            nonlocal process
            if process is None:
                options = ["--port", str(_PORT + 2), "--slo", f"{self._slo_s:.4f}s"]
                serve = ["slurm_hadar.cli.main", "serve", "run", SOURCES[self._model], *options]
                process = _started(serve, told=subprocess.STDOUT)
                _until(process, "is ready")
            return f"http://127.0.0.1:{_PORT + 2}"

        try:
            yield switch
        finally:
            if process is not None:
                _end(process)


def _started(module: list[str], told: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip


def _until(process: subprocess.Popen[str], word: str, drain: bool = True) -> None:
    assert process.stdout is not None
    for line in iter(process.stdout.readline, ""):
        if word in line:
            if drain:  # else a full pipe would stop it
                threading.Thread(target=process.stdout.read, daemon=True).start()
            return
    raise RuntimeError(f"{process.args!r} ended before it was ready")


def _end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)  # its own session, with its workers
    _wait(process)


def _wait(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _json(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    from slurm_hadar.serving.tensors import as_json

    return as_json(request)


def _ratios(kept: Kept, peer: str, calm: float) -> dict[str, float]:
    """At the load where the peer's finish rate is nearest to the goal; and of median latencies where little comes."""
    theirs, ours, load = (
        kept["figures"][f"{peer} duel"],
        kept["figures"][f"hadar serve against {peer}"],
        kept["duel_at"][peer],
    )

    def mean(of: Mapping[str, Any], at: float, what: str) -> float:
        return statistics.fmean(of[f"{at:g} {100 + turn}"][what] for turn in range(_TURNS))

    rates = mean(theirs, load, "finish_rate"), mean(ours, load, "finish_rate")
    waits = mean(theirs, calm, "latency_p50_ms"), mean(ours, calm, "latency_p50_ms")
    return {
        "load": load,
        "finish rate of theirs": rates[0],
        "finish rate of ours": rates[1],
        "finish rate, ours over theirs": rates[1] / max(rates[0], 1e-3),
        "calm median of theirs, ms": waits[0],
        "calm median of ours, ms": waits[1],
        "calm median, ours over theirs": waits[1] / waits[0],
    }
