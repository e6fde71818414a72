"""Population based training: who is not replaced goes on as it runs, who is goes on from a copy of a better one."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import StoreError
from slurm_hadar.tuning.executor.group import Group, Leg
from slurm_hadar.tuning.executor.live import Stage
from slurm_hadar.tuning.population import _inherit

optuna = pytest.importorskip("optuna")

Study = Callable[..., str]


def test_a_course_that_cannot_say_yet_is_asked_again() -> None:
    said: list[Leg | None] = [Leg((0,), 3), None, None, Leg((1,), 6)]
    group = Group({})
    group.follow(iter(said))
    (first,) = group.next_legs()
    first.stage = Stage.AT_RUNG
    assert group.next_legs() == [] and group.next_legs() == [] and not group.over
    (second,) = group.next_legs()
    assert (second.number, second.until) == (1, 6)
    second.stage = Stage.ENDED
    assert group.next_legs() == [] and group.over


def test_a_trial_submitted_anew_has_another_course() -> None:
    group = Group({})
    group.follow(iter([Leg((0,), 3, lambda _number, step: step + 3)]))
    (live,) = group.next_legs()
    assert live.onward is not None and live.goal is None
    group.submit(0, 5)
    assert live.onward is None and live.goal == 5


def _checkpoints(folder: Path) -> Iterator[Path]:
    for number in range(100):
        made = folder / "checkpoints" / f"gen-0-step-{number}"
        made.mkdir(parents=True)
        (made / ".metadata").write_text("x" * 1000)
        yield made


def test_a_copy_of_who_drops_old_checkpoints_meanwhile(tmp_path: Path) -> None:
    """What was dropped while it was copied is tried again; the newest is there."""
    parent = tmp_path / "0"
    made = list(_checkpoints(parent))
    (parent / "runs").write_text("3\n")
    (parent / "checkpoints" / "claim").touch()
    (parent / "checkpoints" / ".tmp-gen-0-step-101").mkdir()

    def drop() -> None:
        for old in made[:-2]:
            shutil.rmtree(old, ignore_errors=True)

    dropper = threading.Thread(target=drop)
    dropper.start()
    try:
        _inherit(parent, tmp_path / "1")
    except StoreError:  # dropped faster than it can be copied three times; then it is still
        dropper.join()
        _inherit(parent, tmp_path / "1")
    dropper.join()
    assert (tmp_path / "1" / "checkpoints" / "gen-0-step-99" / ".metadata").exists()
    copied = {file.name for file in (tmp_path / "1" / "checkpoints").iterdir()}
    assert {"gen-0-step-98", "gen-0-step-99"} <= copied and not {"claim", ".tmp-gen-0-step-101"} & copied
    assert (tmp_path / "1" / "runs").read_text() == "3\n" and not (tmp_path / "1" / "token").exists()


@pytest.mark.thorough
def test_who_is_not_replaced_is_started_once(tuner: Any, study: Study) -> None:
    """No trial is left for a replacement: all go on past each comparison."""
    code, _, err = tuner("run", study(steps=8, pace=0.02), "--trials", "4", "--algorithm", "pbt", "--first-rung", "2",
                         "--gpus", "4", "--seed", "0")  # fmt: skip
    assert code == 0, err
    assert Counter(event["trial"] for event in tuner.events("start")) == dict.fromkeys(range(4), 1)
    steps = {number: [e["step"] for e in tuner.events("onward") if e["trial"] == number] for number in range(4)}
    assert list(steps.values()) == [[2, 4, 6, 8]] * 4
    assert all(len(t.intermediate_values) == 8 and t.state.name == "COMPLETE" for t in tuner.trials())


@pytest.mark.thorough
def test_a_population_larger_than_its_gpus_takes_turns(tuner: Any, study: Study) -> None:
    """Who waits for a GPU gets one at the next comparison, and not when another one is over."""
    code, _, err = tuner("run", study(steps=6, pace=0.02), "--trials", "4", "--algorithm", "pbt", "--first-rung", "2",
                         "--gpus", "2", "--seed", "0")  # fmt: skip
    assert code == 0, err
    order = [event["trial"] for event in tuner.events("start")]
    assert set(order[:4]) == set(range(4)), order
    assert all(len(t.intermediate_values) == 6 for t in tuner.trials())


ALIKE = """
import torch, slurm_hadar, time
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
DATA = TensorDataset(torch.arange(64.0).unsqueeze(1))

def objective(trial):
    lr = trial.suggest_float("lr", 5e-5, 5e-5)  # all are alike, and so are copies
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(DATA, batch_size=8, shuffle=True)
    run = slurm_hadar.train(model, optimizer, total_steps=60, loader=loader, save_every_s=None)
    print("begins at", run.step, flush=True)
    for (x,) in run:
        optimizer.zero_grad()
        (model(x) - 1).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.02)
        if (run.step + 1) % 10 == 0:
            trial.report(trial.number, (run.step + 1) // 10)  # the later ones are the worse ones
    return float(sum(p.double().sum() for p in model.parameters()).item())
"""


@pytest.mark.torch
@pytest.mark.thorough
def test_a_copy_goes_on_where_the_better_one_was_compared(tuner: Any, study: Study) -> None:
    """The better one is not held up for it, and both end as one that nobody disturbs."""
    code, _, err = tuner("run", study(ALIKE), "--trials", "10", "--algorithm", "pbt", "--first-rung", "2",
                         "--gpus", "8", "--packed", "1", "--widest", "1", "--seed", "0")  # fmt: skip
    assert code == 0, err
    trials = tuner.trials()
    assert len(trials) == 10 and sum(t.state.name == "PRUNED" for t in trials) == 2
    children = {t.number: t.user_attrs["hadar:parent"] for t in trials if "hadar:parent" in t.user_attrs}
    starts = Counter(event["trial"] for event in tuner.events("start"))
    assert len(children) == 2 and starts == dict.fromkeys(range(10), 1)
    for child in children:
        log = next(tuner.folder.glob(f"*.hadar/*/trials/{child}/log")).read_text()
        assert int(log.partition("begins at ")[2].split()[0]) in (20, 40, 60), log
    assert len({t.value for t in trials if t.state.name == "COMPLETE"}) == 1
    undisturbed = next(t for t in trials if t.number not in children and t.state.name == "COMPLETE")
    assert len(undisturbed.intermediate_values) == 6
