"""Population based training: who is not replaced goes on as it runs, who is goes on from a copy of a better one."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_hadar.errors import StoreError
from slurm_hadar.tuning.executor.group import Group, Leg
from slurm_hadar.tuning.executor.live import Live, Stage
from slurm_hadar.tuning.population import SLOT, Place, _inherit, committed, perturbed
from slurm_hadar.tuning.search import Search
from slurm_hadar.tuning.study.book import Algorithm

DEADLINE_S = 120.0

optuna = pytest.importorskip("optuna")

Study = Callable[..., str]


def test_parameters_are_perturbed_within_their_bounds() -> None:
    def bounds(low: float, high: float, step: Any = None, log: bool = False) -> SimpleNamespace:
        return SimpleNamespace(low=low, high=high, step=step, log=log)

    distributions = {"lr": bounds(1e-4, 1.0, log=True), "n": bounds(2, 10, step=2), "m": bounds(0.0, 0.9),
                     "c": SimpleNamespace(choices=("a", "b"))}  # fmt: skip
    trial: Any = SimpleNamespace(params={"lr": 0.9, "n": 8, "m": 0.5, "c": "a"}, distributions=distributions)
    for seed in range(200):
        found = perturbed(trial, random.Random(seed))
        assert 1e-4 <= found["lr"] <= 1.0 and 0 <= found["m"] <= 0.9 and found["c"] in "ab"
        assert found["n"] in (2, 4, 6, 8, 10) and isinstance(found["n"], int)
    assert perturbed(trial, random.Random(1)) == perturbed(trial, random.Random(1))


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


def test_nobody_waits_for_the_save_of_one_that_cannot_save() -> None:
    live = Live(0, process=(0, 0), saves_asked=1)
    assert not live.saving
    live.meter.resumable = True
    assert live.saving
    live.saves_answered = 1
    assert not live.saving


def test_a_place_that_is_still_to_begin_has_its_trial_kept_for_it() -> None:
    """However late it begins: ten trials that were asked for stay ten."""
    what = Search(Algorithm.PBT, trials=10, population=8)
    study = optuna.create_study()
    for slot in range(6):
        study.ask().set_user_attr(SLOT, slot)
    assert committed(what, study.trials) == 8
    study.ask().set_user_attr(SLOT, 0)  # in place of one that was worse
    assert committed(what, study.trials) == 9
    study.enqueue_trial({})  # which a place takes up
    assert committed(what, study.trials) == 9
    for _ in range(3):
        study.enqueue_trial({})
    assert committed(what, study.trials) == 11
    assert committed(Search(Algorithm.PBT, trials=4, population=8), []) == 4


def test_two_that_are_due_at_once_are_not_both_replaced_where_one_trial_is_left() -> None:
    """The first of them still waits for what the better one saves when the second is compared."""
    study, replaced = optuna.create_study(), dict[int, int]()

    def ask(attributes: dict[str, int]) -> int:
        trial = study.ask()
        for key, value in attributes.items():
            trial.set_user_attr(key, value)
        return int(trial.number)

    book = SimpleNamespace(trials=lambda: study.get_trials(deepcopy=False), ask=ask, maximize=False)
    executor: Any = SimpleNamespace(book=book, closing=False)
    what = Search(Algorithm.PBT, trials=9, population=8, first_rung=2)
    legs = [next(Place(executor, what, slot, replaced).legs()) for slot in range(8)]
    for number in range(8):
        optuna.trial.Trial(study, number).report(float(number), 2)

    onward = [leg.onward(leg.trials[0], 2) for leg in legs if leg is not None and leg.onward is not None]

    assert onward == [4] * 6 + [None, 4]


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


def test_a_copy_of_who_replaces_its_only_checkpoint_meanwhile(tmp_path: Path) -> None:
    """The same step saved again: for a moment the checkpoint has another name. It is waited for."""
    parent = tmp_path / "0"
    aside = parent / "checkpoints" / ".old-gen-0-step-20"
    aside.mkdir(parents=True)
    (aside / "state.pt").touch()
    replacing = threading.Timer(0.05, lambda: aside.rename(aside.with_name("gen-0-step-20")))
    replacing.start()
    try:
        assert _inherit(parent, tmp_path / "1")
    finally:
        replacing.join()
    assert [file.name for file in (tmp_path / "1" / "checkpoints").iterdir()] == ["gen-0-step-20"]


def test_a_copy_of_who_has_saved_nothing_is_told_from_one_of_who_has(tmp_path: Path) -> None:
    assert not _inherit(tmp_path / "0", tmp_path / "1")
    (tmp_path / "0" / "checkpoints" / ".tmp-gen-0-step-20-1-1").mkdir(parents=True)
    (tmp_path / "0" / "checkpoints" / "claim").touch()
    assert not _inherit(tmp_path / "0", tmp_path / "1")


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


#: All of a population of eight begin together, so that a busy machine puts none of them a comparison behind.
ALIKE = """
import pathlib, torch, slurm_hadar, time
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
    pathlib.Path(f"ready-{trial.number}").touch()
    while trial.number < 8 and sum(1 for _ in pathlib.Path().glob("ready-*")) < 8:
        time.sleep(0.01)
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


@pytest.mark.torch
@pytest.mark.thorough
def test_nobody_goes_on_from_one_that_has_come_to_no_comparison(tuner: Any, study: Study) -> None:
    """The best two have reported once, and saved nothing, when the worst two are due; so these are replaced later."""
    waits = """
        late, others = trial.number < 2, [f"due-{n}" for n in ((6, 7) if trial.number < 2 else (0, 1))]
        if run.step == (15 if late else 35) and trial.number in (0, 1, 6, 7):
            while not all(map(os.path.exists, others)):
                time.sleep(0.02)
"""
    told = """
            if run.step + 1 == 20:
                open(f"due-{trial.number}", "w").close()
"""
    objective = ALIKE.replace("import pathlib,", "import os, pathlib,")
    before, loop, rest = objective.partition("    for (x,) in run:\n")
    before = before.replace("    loader =", f"    os.chdir({str(tuner.folder)!r})\n    loader =")
    rest, last, end = rest.partition("    return float")
    code, _, err = tuner("run", study(before + loop + waits.lstrip("\n") + rest + told.lstrip("\n") + last + end),
                         "--trials", "10", "--algorithm", "pbt", "--first-rung", "2", "--gpus", "8", "--packed", "1",
                         "--widest", "1", "--seed", "0")  # fmt: skip
    assert code == 0, err
    children = [t for t in tuner.trials() if "hadar:parent" in t.user_attrs]
    assert children and not any("hadar:anew" in t.user_attrs for t in children)
    for child in children:
        log = next(tuner.folder.glob(f"*.hadar/*/trials/{child.number}/log")).read_text()
        assert int(log.partition("begins at ")[2].split()[0]) in (20, 40, 60), log


KILLED = """
import os, signal
from slurm_hadar.runtime.checkpoint import listing
listing._link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from slurm_hadar.cli.main import main
main()
"""


@pytest.mark.torch
@pytest.mark.thorough
def test_a_tuner_that_is_killed_while_it_copies(tuner: Any, study: Study) -> None:
    """The next one copies what is missing, and ends who was replaced."""
    words = ["run", study(ALIKE), "--trials", "9", "--algorithm", "pbt", "--first-rung", "2", "--gpus", "8", "--packed",
             "1", "--widest", "1", "--seed", "0"]  # fmt: skip
    command = [sys.executable, "-c", KILLED, "tune", *words]
    killed = subprocess.Popen(command, cwd=tuner.folder, env=tuner.environ)
    tuner.started.append(killed)
    assert killed.wait(DEADLINE_S) == -signal.SIGKILL
    code, _, err = tuner("resume", "--gpus", "8")
    assert code == 0, err
    trials = tuner.trials()
    assert Counter(t.state.name for t in trials) == {"COMPLETE": 8, "PRUNED": 1}
    (child,) = (t for t in trials if "hadar:parent" in t.user_attrs)
    log = next(tuner.folder.glob(f"*.hadar/*/trials/{child.number}/log")).read_text()
    assert int(log.partition("begins at ")[2].split()[0]) >= 20, log  # later, if that is where it saved on its own


@pytest.mark.thorough
def test_a_copy_of_who_cannot_save_is_said_once_to_begin_anew(tuner: Any, study: Study) -> None:
    plain = """
import time

def objective(trial):
    trial.suggest_float("x", 0.0, 1.0)
    for step in range(1, 7):
        time.sleep(0.05)
        trial.report(trial.number, step)
    return trial.number
"""
    code, _, err = tuner("run", study(plain), "--trials", "10", "--algorithm", "pbt", "--first-rung", "2",
                         "--gpus", "8", "--packed", "1", "--widest", "1", "--seed", "0")  # fmt: skip
    assert code == 0, err
    children = [t for t in tuner.trials() if "hadar:parent" in t.user_attrs]
    assert len(children) == 2 and all(t.user_attrs["hadar:anew"] for t in children)
    assert err.count("begins at its first step") == 1 and "has saved nothing" in err
