"""A learning rate that follows from the count of ``enumerate``, which begins anew in each run: told of, and no word of
what goes on by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BEGIN = """
import os, signal, sys, torch, slurm_hadar
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Linear(3, 3); optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
def step(x): optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()
def adjust(at, name="lr"):
    for group in optimizer.param_groups: group[name] = 0.1 / (1 + at)
def told(run):
    if run.step == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
def logged(batches):
    for batch in batches: yield batch
run = slurm_hadar.train(net, optimizer, total_steps=14, loader=[torch.ones(2, 3)] * 5, scheduler={})
"""
END = "\nprint('end', run.step, net.weight.flatten().tolist())\n"
TOLD = {
    "lr": """
def main(batches):
    for i, x in enumerate(batches): adjust(i); step(x); told(run)
main(run)
""",
    "weight_decay": """
for i, x in enumerate(logged(run), 1):
    adjust(i / 5, "weight_decay"); step(x); told(run)
""",
}
SILENT = {
    "by the step in the whole training": (
        "None",
        """
for i, x in enumerate(run):
    adjust(run.step); step(x); told(run)
    if i % 10 == 0: print(i)
""",
    ),
    "by a scheduler": (
        "(scheduler := torch.optim.lr_scheduler.StepLR(optimizer, 2))",
        "\nfor i, x in enumerate(run): step(x); told(run); scheduler.step()\n",
    ),
    "without a count": (
        "None",
        "\nat = iter(range(run.step, 99))\nfor x in run:\n"
        "    adjust(next(at)); step(x); told(run)\n    for i, y in enumerate([1]): pass\n",
    ),
    "not at all": ("None", "\nfor i, x in enumerate(run): step(x); told(run)\n"),
}


@pytest.fixture
def play(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, str, str]]:
    def play(script: str, restart: int, stop: int, name: str = "") -> tuple[int, str, str]:
        env = {**job_env, "SLURM_RESTART_COUNT": str(restart), "HADAR_JOB_DIR": job_env["HADAR_JOB_DIR"] + name}
        started = start_script(script + END, env, str(stop))
        out, err = started.communicate(300)
        return started.returncode, out, err

    return play


@pytest.mark.parametrize("name", TOLD)
def test_what_follows_from_a_count_that_begins_anew_is_told_of(name: str, play: Any) -> None:
    code, _, said = play(BEGIN.format("None") + TOLD[name], 0, 7)
    assert code == -signal.SIGTERM and said.count("WARNING") == 1, said
    assert f"WARNING: the loop sets {name} of AdamW and counts its batches by enumerate()" in said


@pytest.mark.parametrize("how", SILENT)
def test_no_word_of_what_goes_on(how: str, play: Any) -> None:
    scheduler, loop = SILENT[how]
    script = BEGIN.format(scheduler) + loop
    code, expected, said = play(script, 0, -1, "-undisturbed")
    assert code == 0 and "WARNING" not in said, said
    assert play(script, 0, 7)[0] == -signal.SIGTERM
    code, found, said = play(script, 1, -1)
    assert code == 0 and "WARNING" not in said, said
    assert found.splitlines()[-1] == expected.splitlines()[-1]
