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
def train(optimizer=optimizer, **more):
    batches = [torch.full((2, 3), float(n)) for n in range(5)]
    return slurm_hadar.train(net, optimizer, total_steps=14, loader=batches, **more)
"""
END = "\nprint('end', run.step, net.weight.flatten().tolist())\n"
TOLD = {
    "sets lr of AdamW": """
def main(batches):
    for i, x in enumerate(batches): adjust(i); step(x); told(run)
run = train(); main(run)
""",
    "sets weight_decay of AdamW": """
run = train()
for i, x in enumerate(logged(run), 1):
    adjust(i / 5, "weight_decay"); step(x); told(run)
""",
    "steps its optimizers in some turns only": """
net.more = nn.Parameter(torch.ones(1)); other = torch.optim.SGD([net.more], lr=0.1); run = train([optimizer, other])
for i, x in enumerate(run):
    step(x); told(run)
    if i % 5 == 0: other.step()
""",
}
SILENT = {
    "by the step in the whole training": """
run = train()
for i, x in enumerate(run):
    adjust(run.step); step(x); told(run)
    if i % 10 == 0: print(i)
""",
    "by a scheduler": """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2); run = train(scheduler=scheduler)
for i, x in enumerate(run): step(x); told(run); scheduler.step()
""",
    "without a count": """
run = train(); at = iter(range(run.step, 99))
for x in run:
    adjust(next(at)); step(x); told(run)
    for i, y in enumerate([1]): pass
""",
    "not at all": """
run = train()
for i, x in enumerate(run): step(x); told(run)
""",
    "but for what a gradient scaler leaves out": """
scaler = torch.amp.GradScaler("cpu"); run = train(also={"scaler": scaler})
for i, x in enumerate(run):
    if x[0, 0] != 4: step(x)
    told(run)
""",
}


@pytest.fixture
def play(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, str, str]]:
    def play(script: str, restart: int, stop: int, name: str = "") -> tuple[int, str, str]:
        env = {**job_env, "SLURM_RESTART_COUNT": str(restart), "HADAR_JOB_DIR": job_env["HADAR_JOB_DIR"] + name}
        started = start_script(script + END, env, str(stop))
        out, err = started.communicate(300)
        return started.returncode, out, err

    return play


@pytest.mark.parametrize("does", TOLD)
def test_what_follows_from_a_count_that_begins_anew_is_told_of(does: str, play: Any) -> None:
    code, _, said = play(BEGIN + TOLD[does], 0, 7)
    assert code == -signal.SIGTERM and said.count("WARNING") == 1, said
    assert f"WARNING: the loop {does} and counts its batches by enumerate()" in said


@pytest.mark.parametrize("how", SILENT)
def test_no_word_of_what_goes_on(how: str, play: Any) -> None:
    script = BEGIN + SILENT[how]
    code, expected, said = play(script, 0, -1, "-undisturbed")
    assert code == 0 and "WARNING" not in said, said
    assert play(script, 0, 7)[0] == -signal.SIGTERM
    code, found, said = play(script, 1, -1)
    assert code == 0 and "WARNING" not in said, said
    assert found.splitlines()[-1] == expected.splitlines()[-1]
