"""``run.stop()``: a training that ends before its last step stays ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import slurm_hadar  # noqa: E402 - needs PyTorch

BATCHES = [torch.tensor([float(n)]) for n in range(5)]

GANG = """
import json, os, sys, torch, slurm_hadar
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
layer = torch.nn.Linear(1, 1)
steps = int(sys.argv[2 + dist.get_rank()])
try:
    run = slurm_hadar.train(layer, torch.optim.SGD(layer.parameters(), lr=0.1), total_steps=steps)
except ValueError as error:
    print(error)
    sys.exit(3)
made = []
for step in run:
    made.append(step)
    if sys.argv[1] == "stop" and step == 3:
        run.stop()
print(json.dumps(made))
dist.barrier()
"""


def training(directory: Path | None, **options: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    return layer, optimizer, slurm_hadar.train(layer, optimizer, total_steps=20, directory=directory, **options)


def step(layer: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    (layer(batch) - 1).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("how", ["in the loop", "before the step, in the loop", "with break", "behind the loop"])
def test_no_later_run_makes_another_step(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever it is called: the loop of the next run makes no step, and has the weights, state and step of the end."""
    layer, optimizer, run = training(tmp_path, loader=BATCHES, state={"best": 0})
    for batch in run:
        if how.startswith("before") and run.step == 6:
            run.stop()
        step(layer, optimizer, batch)
        run.state["best"] = run.step
        if run.step == 6 and how != "behind the loop" and not how.startswith("before"):
            run.stop()
        if run.step == 6 and how in ("with break", "behind the loop"):
            break
    if how == "behind the loop":
        run.stop()
    assert (run.step, run.total_steps, run.unfinished) == (7, 7, False)

    again, _, later = training(tmp_path, loader=BATCHES, state={"best": 0})

    assert list(later) == [] and (later.step, later.state) == (7, {"best": 6})
    assert torch.equal(again.weight, layer.weight)
    assert "was stopped at step 7 by run.stop(): no further step is made" in capsys.readouterr().err


def test_an_older_save_of_the_same_step_does_not_stand_for_it(tmp_path: Path) -> None:
    """Saved, then looked at, then stopped: the save from before the decision does not say that it is over."""
    layer, optimizer, run = training(tmp_path, loader=BATCHES)
    for batch in run:
        step(layer, optimizer, batch)
        if run.step == 3:
            break
    run.save()
    run.stop()
    assert list(training(tmp_path, loader=BATCHES)[2]) == []


def test_a_turn_without_a_step_is_none(tmp_path: Path) -> None:
    """Stopped and left before anything was done in the turn: its batch was not trained on."""
    layer, optimizer, run = training(tmp_path, loader=BATCHES)
    for batch in run:
        if run.step == 5:
            run.stop()
            break
        step(layer, optimizer, batch)
    assert (run.step, run.total_steps) == (5, 5)
    assert list(training(tmp_path, loader=BATCHES)[2]) == []


def test_where_nothing_is_saved_the_loop_ends_all_the_same() -> None:
    layer, optimizer, run = training(None, loader=BATCHES)
    for batch in run:
        step(layer, optimizer, batch)
        if run.step == 2:
            run.stop()
    assert run.step == 3


def test_several_workers_stop_together(run_gang: Any, job_env: dict[str, str]) -> None:
    first = run_gang(GANG, {**job_env, "SLURM_RESTART_COUNT": "0"}, 2, "stop", "9", "9")
    later = run_gang(GANG, {**job_env, "SLURM_RESTART_COUNT": "1"}, 2, "go on", "9", "9")
    assert [(one.returncode, one.stdout) for one in first] == [(0, "[0, 1, 2, 3]\n")] * 2, first
    assert [(one.returncode, one.stdout) for one in later] == [(0, "[]\n")] * 2, later


def test_workers_of_unlike_steps_are_refused(run_gang: Any, job_env: dict[str, str]) -> None:
    """They would wait for each other for ever at the end of the shorter one."""
    for one in run_gang(GANG, job_env, 2, "go on", "9", "7"):
        assert one.returncode == 3 and "total_steps is not the same on all workers (7, 9)" in one.stdout, one
