"""A worker: a process that holds the models and runs one batch at a time.

python -m slurm_hadar.serving.server.workers.worker FILE.py:build LARGEST NAME

with a :class:`slurm_hadar.serving.server.workers.line.WorkerLine` in its environment; the name is for who looks at
processes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from slurm_hadar.dependent import die_with_parent
from slurm_hadar.errors import ConfigError, HadarError, reason_of
from slurm_hadar.serving.server.model import ModelInfo, ServedModel, Tensors, TensorSpec, load_models
from slurm_hadar.serving.server.wire import pack, unpack
from slurm_hadar.serving.server.workers.line import WorkerLine, connect, keep_beating, take_gpu
from slurm_hadar.serving.tensors import DATATYPES, fitted, unmasked
from slurm_hadar.sharing import iteration

__all__ = ["main", "measured", "run_batch"]

_SINGLES = 20  # runs of each application at the start
_WARM_UP_S = 10.0  # at most for these, of each model
_BATCHES = 3


def main() -> None:
    """A worker's process: load the models, measure them, then run batches until the server ends it."""
    source, largest = sys.argv[1:3]
    sys.path.append(str(Path.cwd()))  # behind all else: nothing there stands in the way of a module of Python's
    line = WorkerLine.take(os.environ)
    for number in (signal.SIGINT, signal.SIGTERM):  # Slurm and a terminal tell all of us; the server ends us when done
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    take_gpu(line, os.environ)
    keep_beating(line, os.environ)
    with zmq.Context() as context, connect(line, context) as socket:
        try:
            _work(socket, source, int(largest))
        except HadarError as error:
            socket.send_multipart(pack({"kind": "failed", "why": str(error)}))
            raise SystemExit(1) from None


def _work(socket: Any, source: str, largest: int) -> None:
    with _one_process():
        models = {model.name: model for model in load_models(source)}
    told, groups = [], []
    for model in models.values():
        found, examples = measured(model, largest)
        told.append(found)
        groups.extend(examples)
    socket.send_multipart(pack({"kind": "ready", "models": told}, groups))
    turn = iteration if os.environ.get("HADAR_SHARE") else nullcontext  # of a GPU that others share: a batch is a turn
    while True:
        header, requests = unpack([frame.buffer for frame in socket.recv_multipart(copy=False)])
        with turn():
            frames = run_batch(models[header["model"]], header["batch"], requests)
        socket.send_multipart(frames, copy=False)


def run_batch(model: ServedModel, number: int, requests: list[dict[str, Any]]) -> list[Any]:
    """A batch that fails is run again one by one: one request's fault stays that request's. A model may write to what
    it is given, so of several it is given copies, and the second run begins with what has come."""
    began = time.perf_counter()
    answers: list[Tensors] = []
    failures: dict[int, str] = {}
    try:
        answers = _answers(model, [_kept(r) for r in requests] if len(requests) > 1 else list(requests))
    except Exception as error:  # the user's code
        failures = {0: reason_of(error)}
        answers = [{}]
        if len(requests) > 1:
            answers, failures = _one_by_one(model, requests)
    header = {"kind": "done", "batch": number, "seconds": time.perf_counter() - began,
              "failures": {str(n): why for n, why in failures.items()}}  # fmt: skip
    return pack(header, answers)


def _one_by_one(model: ServedModel, requests: Sequence[Tensors]) -> tuple[list[Tensors], dict[int, str]]:
    answers: list[Tensors] = []
    failures: dict[int, str] = {}
    for place, request in enumerate(requests):
        try:
            answers.extend(_kept(one) for one in _answers(model, [request]))
        except Exception as error:  # the user's code
            answers.append({})
            failures[place] = reason_of(error)
    return answers, failures


def _kept(tensors: Tensors) -> dict[str, Any]:
    """A model may write to its requests, and all its answers to the same place: no run changes these."""
    return {name: np.array(array) for name, array in tensors.items()}


def _answers(model: ServedModel, requests: list[Tensors]) -> list[Tensors]:
    """As the model has promised them. Raises ConfigError where it has not kept it."""
    info = ModelInfo.of(model)
    with _one_process():
        answers = list(model.infer(requests))
    if len(answers) != len(requests):
        raise ConfigError(f"model {model.name} gave {len(answers)} answers to {len(requests)} requests")
    found: list[Tensors] = []
    for answer in answers:
        arrays: dict[str, Any] = {}
        for spec in info.outputs:
            array = arrays[spec.name] = fitted(_unmasked(model, spec, answer[spec.name]), spec.datatype)
            if array is None:
                raise ConfigError(f"model {model.name}: {spec.name} does not fit into {spec.datatype}, as is promised")
            if not spec.admits(array.shape):
                raise ConfigError(f"model {model.name}: {spec.name} of shape {array.shape} is not promised")
        found.append(arrays)
    return found


def _unmasked(model: ServedModel, spec: TensorSpec, value: Any) -> Any:
    try:
        return unmasked(value)
    except ValueError as error:
        raise ConfigError(f"model {model.name}: {spec.name} {error}") from None


@contextmanager
def _one_process() -> Iterator[None]:
    """Around the user's code: a process that it has forked, and that comes back from it, ends here. It would be a
    second worker on this one's line, which nobody ends."""
    worker = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != worker:
            os._exit(1)


def measured(model: ServedModel, largest: int) -> tuple[dict[str, Any], list[Tensors]]:
    """Warm it up, and what it takes: seconds of single runs by application, of batches by size relative to their
    longest request; with the example requests, in the order of ``applications``. Raises ConfigError where it fails."""
    info = ModelInfo.of(model)
    try:
        with _one_process():
            examples = {name: list(requests) for name, requests in model.examples().items()}
        if not all(examples.values()) or not examples:
            raise ConfigError("examples() must give at least one request of each application, and one application")
        rows = [(name, _checked(info, request)) for name, requests in examples.items() for request in requests]
        singles = _singles(model, rows)
        batches = _batches(model, rows, singles, largest)
    except Exception as error:
        raise ConfigError(f"model {model.name} fails on its examples: {reason_of(error)}") from error
    told = {"metadata": info.metadata(), "applications": [name for name, _ in rows], "singles": singles,
            "batches": {str(k): s for k, s in batches.items()}}  # fmt: skip
    return told, [request for _, request in rows]


def _checked(info: ModelInfo, request: Tensors) -> dict[str, Any]:
    arrays = {spec.name: np.asarray(request[spec.name], DATATYPES[spec.datatype]) for spec in info.inputs}
    for spec in info.inputs:
        if not spec.admits(arrays[spec.name].shape):
            raise ConfigError(f"an example's {spec.name} has shape {arrays[spec.name].shape}, not {spec.shape}")
    return arrays


def _singles(model: ServedModel, rows: Sequence[tuple[str, Tensors]]) -> dict[str, list[float]]:
    for _, request in rows:
        _seconds(model, [request])  # the first run of each shape may compile or allocate
    found: dict[str, list[float]] = {name: [] for name, _ in rows}
    ends = time.monotonic() + _WARM_UP_S
    for place in range(_SINGLES * len(rows)):
        name, request = rows[place % len(rows)]
        if len(found[name]) < _SINGLES:
            found[name].append(_seconds(model, [request]))
        if time.monotonic() > ends and all(found.values()):
            break
    return found


def _batches(
    model: ServedModel, rows: Sequence[tuple[str, Tensors]], singles: Mapping[str, Sequence[float]], largest: int
) -> dict[int, float]:
    """Of equal requests, the shortest application's and the longest's: the mean of both ratios."""
    typical = {name: float(np.median(seconds)) for name, seconds in singles.items()}
    ordered = sorted(typical, key=lambda name: typical[name])
    tried = [next(request for name, request in rows if name == wanted) for wanted in {ordered[0], ordered[-1]}]
    alone = [float(np.median([_seconds(model, [r]) for _ in range(_BATCHES)])) for r in tried]
    found = {1: 1.0}
    size, ends = 2, time.monotonic() + _WARM_UP_S
    while size <= largest and (size == 2 or time.monotonic() < ends):  # larger ones are taken to go on as these
        ratios = [
            float(np.median([_seconds(model, [r] * size) for _ in range(_BATCHES)])) / max(one, 1e-9)
            for r, one in zip(tried, alone, strict=True)
        ]
        found[size] = max(1.0, float(np.mean(ratios)))
        size *= 2
    return found


def _seconds(model: ServedModel, requests: list[Tensors]) -> float:
    given: list[Tensors] = [_kept(r) for r in requests]
    began = time.perf_counter()
    _answers(model, given)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
