"""What a script sets in its data from epoch to epoch: a resumed run has it, or says that it has not."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = """
import os, random, signal, threading, numpy, torch, slurm_hadar
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0); random.seed(0)
def weak(x): return x
def strong(x): return x + torch.randn(3)
class Noise:
    def __init__(self, by): self.by, self.calls = by, 0
    def __call__(self, x): self.calls += 1; return x + self.by
class Compose:
    def __init__(self, *parts): self.parts = list(parts)
    def __call__(self, x):
        for part in self.parts: x = part(x)
        return x
class Data(Dataset):
    def __init__(self):
        self.transform, self.more, self.parts = weak, None, Compose(weak, Noise(0.1))
        self.hard, self.size, self.mode = False, 0, "easy"
        self.chosen, self.labels, self.marks = list(range(16)), torch.zeros(24), numpy.zeros(24)
        self.file, self.cache, self.lock, self.words, self.ready = None, {}, threading.Lock(), None, False
        self.kept, self.last = torch.zeros(24), 0.0
    def __len__(self): return len(self.chosen)
    def __getitem__(self, i):
        i = self.chosen[i]
        if self.file is None: self.file, self.words, self.ready = open(os.devnull), Noise(0.0), True
        self.cache[i], self.kept[i] = i, 1
        x = self.parts(self.transform(torch.full((3,), i / 24.0))) + self.labels[i] + float(self.marks[i]) + self.size
        x = -x if self.hard else x
        x = x if self.more is None else self.more(x)
        return x if self.mode == "easy" else 2 * x
data = Data()
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
LOADER
run = slurm_hadar.train(model, optimizer, total_steps=32, loader=loader)
for epoch, batches in run.epochs():
    TOP
    for x in batches:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
        if run.step == AT and os.environ["SLURM_RESTART_COUNT"] == "0": os.kill(os.getpid(), signal.SIGTERM)
    BEHIND
    if run.step == AT and os.environ["SLURM_RESTART_COUNT"] == "0": os.kill(os.getpid(), signal.SIGTERM)
print(model.weight.tolist(), model.bias.tolist())
"""
PLAIN = "loader = DataLoader(data, 4, shuffle=True)"
WITHIN, BETWEEN = 13, 16  # steps: of an epoch with four, or more
RIGHT = {
    "by the epoch": "data.transform = strong if epoch >= 2 else weak",
    "from an epoch on": "if epoch >= 1: data.transform, data.size, data.hard = strong, 0.5, True",
    "until an epoch": "data.more, data.mode = (strong, 'easy') if epoch < 2 else (None, 'hard')",
    "the epoch itself": "data.size = epoch",
    "parts": "data.parts = Compose(weak, *([Noise(0.1)] if epoch < 3 else [strong]))",
    "for each pass": "data.transform, data.hard = weak, False",
}
#: What a resumed run has not, by its name: what is set in one epoch's beginning, or behind it.
LOST = {
    "Data.transform": "data.transform = strong",
    "Data.more": "data.more = strong",
    "Data.hard": "data.hard = True",
    "Data.mode": "data.mode = 'hard'",
    "Data.size": "data.size = 5",
    "Data.parts.parts": "data.parts.parts.append(strong)",
    "Data.parts.parts[1].by": "data.parts.parts[1].by = 0.7",
    "Data.chosen": "data.chosen = data.chosen + [16, 17, 18, 19]",
    "Data.labels": "data.labels[5:] = 1",
    "Data.marks": "data.marks[5:] = 1",
}
OF_A_FUNCTION = "chosen = list(range(16))\ndef loader(): return DataLoader(torch.utils.data.Subset(data, chosen), 4)"


@pytest.fixture
def play(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[str, str, str]]:
    """What an undisturbed run, and one that is told to end after a step and then resumed, print and say."""

    def one(script: str, at: int, restart: int, code: int) -> tuple[str, str]:
        env = {**job_env, "SLURM_RESTART_COUNT": str(restart), "HADAR_JOB_DIR": f"{job_env['HADAR_JOB_DIR']}-{at > 0}"}
        started = start_script(script.replace("AT", str(at), 2), env)
        out, said = started.communicate(300)
        assert started.returncode == code, said
        return out, said

    def play(
        at: int, top: str = "pass", behind: str = "pass", loader: str = PLAIN, before: int = 0
    ) -> tuple[str, str, str]:
        """``before``: how many warnings there are before it is lost."""
        script = SCRIPT.replace("TOP", top).replace("BEHIND", behind).replace("LOADER", loader)
        expected, said = one(script, -1, 0, 0)
        assert said.count("WARNING") == before, said
        _, said = one(script, at, 0, -signal.SIGTERM)
        found, after = one(script, at, 1, 0)
        assert "resumed from" in after and said.count("WARNING") == before, said + after
        return expected, found, after

    return play


@pytest.mark.parametrize("at", [WITHIN, BETWEEN])
@pytest.mark.parametrize("how", RIGHT)
def test_no_word_of_what_each_run_sets_by_the_epoch_and_of_what_data_do_by_themselves(
    how: str, at: int, play: Any
) -> None:
    behind = "data.transform, data.hard = strong, True" if how == "for each pass" else "pass"  # as a validation
    expected, found, said = play(at, RIGHT[how], behind)
    assert found == expected and "WARNING" not in said, said


@pytest.mark.parametrize("name", LOST)
def test_what_was_set_in_an_epoch_that_is_over_is_told_of(name: str, play: Any) -> None:
    expected, found, said = play(WITHIN, top=f"if epoch == 1: {LOST[name]}")
    assert found != expected
    assert said.count("WARNING") == 1 and f"ended the last one: {name}. So the training" in said, said


@pytest.mark.parametrize(
    ("name", "behind"),
    [
        ("transform", "if epoch == 1: data.transform = strong"),
        ("chosen", "data.chosen = data.chosen + [16 + len(data.chosen) % 8] * 4"),
    ],
)
def test_what_was_set_behind_an_epoch_is_told_of_by_a_run_that_begins_with_a_later_one(
    name: str, behind: str, play: Any
) -> None:
    at = {"transform": 16, "chosen": 4 + 5 + 6}[name]
    expected, found, said = play(at, behind=behind)
    assert found != expected and f"ended the last one: Data.{name}. So the training" in said, said


def test_so_is_a_list_that_the_function_reads_which_makes_the_batches(play: Any) -> None:
    expected, found, said = play(WITHIN, behind="chosen.append(epoch)", loader=OF_A_FUNCTION, before=1)
    assert found != expected and "ended the last one: chosen. So the training" in said, said


@pytest.mark.parametrize("at", [WITHIN, BETWEEN])
@pytest.mark.parametrize(
    ("top", "behind"),
    [
        ("pass", "data.chosen += [16 + epoch]"),
        ("if not batches.start: random.shuffle(data.chosen)", "pass"),
        ("pass", "random.shuffle(data.chosen)"),
    ],
)
def test_lists_of_a_dataset_that_change_in_place_go_on(top: str, behind: str, at: int, play: Any) -> None:
    expected, found, said = play(at, top, behind)
    assert found == expected and "WARNING" not in said, said
