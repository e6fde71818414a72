"""What a worker makes of a batch: each request's answer is its own, and what the model has promised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from slurm_hadar.serving.server.wire import pack, unpack
from slurm_hadar.serving.server.workers.worker import measured, run_batch
from slurm_hadar.serving.tensors import fitted


class Doubling:
    """Twice x, written to one place for all batches, as models with preallocated outputs do."""

    name = "doubling"
    inputs = (("x", "FP32", [1]),)
    outputs = (("y", "INT8", [1]),)

    def __init__(self) -> None:
        self._all = np.zeros((8, 1))

    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        for row, request in zip(self._all, requests, strict=False):
            if request["x"][0] < 0:
                raise ValueError("negative")
            row[:] = 2 * request["x"]
        return [{"y": row} for row in self._all[: len(requests)]]

    def examples(self) -> Any:
        raise NotImplementedError


class Static(Doubling):
    """Of the promised type from the beginning, so that nothing need be converted."""

    def __init__(self) -> None:
        self._all = np.zeros((8, 1), np.int8)


def answered(model: Any, *values: float) -> tuple[list[int | None], dict[str, str]]:
    requests = [{"x": np.array([v], np.float32)} for v in values]
    header, answers = unpack([bytes(frame) for frame in run_batch(model, 1, requests)])
    return [int(a["y"][0]) if a else None for a in answers], header["failures"]


@pytest.mark.parametrize("model", [Doubling(), Static()])
def test_one_requests_fault_stays_its_own(model: Any) -> None:
    assert answered(model, 1, 2, 3) == ([2, 4, 6], {})
    assert answered(model, 1, 2, -1, 5) == ([2, 4, None, 10], {"2": "ValueError: negative"})


class InPlace(Doubling):
    """Writes to what it is given before it looks at it."""

    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        for request in requests:
            request["x"][:] *= 2
        if any(request["x"][0] == 26 for request in requests):
            raise ValueError("26")
        return [{"y": request["x"]} for request in requests]

    def examples(self) -> Any:
        return {"one": [{"x": [3.0]}]}


def test_a_model_that_writes_to_its_requests_answers_each_once() -> None:
    """Though the batch is run again one by one."""
    sent = pack({}, [{"x": np.array([v], np.float32)} for v in (1, 13, 3)])
    header, requests = unpack([bytearray(frame) for frame in sent])

    header, answers = unpack([bytes(frame) for frame in run_batch(InPlace(), 1, requests)])

    assert [int(a["y"][0]) if a else None for a in answers] == [2, None, 6]
    assert header["failures"] == {"1": "ValueError: 26"}


def test_a_model_is_measured_with_the_same_examples_each_time() -> None:
    _, examples = measured(InPlace(), 4)
    assert [e["x"].tolist() for e in examples] == [[3.0]]


def test_an_answer_that_does_not_fit_is_refused_not_changed() -> None:
    answers, failures = answered(Doubling(), 1, 100, 0.25)
    assert answers == [2, None, None]
    assert set(failures.values()) == {"model doubling: y does not fit into INT8, as is promised"}


@pytest.mark.parametrize(
    ("values", "datatype", "fits"),
    [
        ([127, -128], "INT8", True), ([128], "INT8", False), ([-1], "UINT8", False), ([2.0], "INT32", True),
        ([1.9], "INT32", False), ([np.nan], "INT64", False), ([1, 0], "BOOL", True), ([2], "BOOL", False),
        ([1e5], "FP16", False), ([np.inf, np.nan, 0.1], "FP16", True), ([1e300], "FP32", False), ([], "INT8", True),
    ],
)  # fmt: skip
def test_values_that_a_datatype_can_have(values: list[float], datatype: str, fits: bool) -> None:
    assert (fitted(np.array(values), datatype) is not None) == fits


class Forking(Doubling):
    """A process that it forks returns, or fails, as if it were the worker."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self._fails, self.child = fails, 0

    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        self.child = os.fork()
        if not self.child and self._fails:
            raise SystemExit(0)
        return super().infer(requests)


@pytest.mark.parametrize("fails", [False, True])
def test_who_is_forked_by_a_model_is_no_second_worker(fails: bool) -> None:
    model, me = Forking(fails), os.getpid()
    try:
        found = answered(model, 1)
    finally:
        if os.getpid() != me:
            os._exit(0)

    assert found == ([2], {})
    assert os.waitstatus_to_exitcode(os.waitpid(model.child, 0)[1]) == 1


class Masking(Doubling):
    """Without the values that are below 2."""

    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{"y": np.ma.masked_less(r["x"], 2)} for r in requests]


def test_a_mask_is_not_dropped_unsaid() -> None:
    answers, failures = answered(Masking(), 5, 1)
    assert answers == [5, None]
    assert "model doubling: y has masked elements" in failures["1"]
