"""By what trials are ranked, whom a population learns from, and algorithms of one's own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")

from slurm_hadar.tuning import algorithms, population  # noqa: E402
from tests.tuning.conftest import PLAIN  # noqa: E402

Study = Callable[..., str]


def member(number: int, reports: dict[int, float]) -> Any:
    """A trial that runs."""
    running = optuna.trial.TrialState.RUNNING
    made = optuna.trial.create_trial(state=running, intermediate_values=reports, user_attrs={population.SLOT: number})
    made.number = number
    return made


@pytest.mark.parametrize(
    ("reports", "value"),
    [
        ({1: 5.0, 3: 4.0}, 4.0), ({1: 5.0, 3: float("nan")}, None), ({1: 5.0, 3: float("inf")}, None),
        ({1: float("nan"), 2: 3.0}, 3.0), ({2: 7.0, 4: 6.0}, 7.0), ({10: 2.0}, 2.0), ({}, None),
    ],
)  # fmt: skip
def test_what_a_trial_is_ranked_by_at_a_rung(reports: dict[int, float], value: float | None) -> None:
    """By its last report up to it, which has to be a number; by its first where reports are further apart."""
    assert algorithms.value_at(member(0, reports), 3) == value


def test_who_has_diverged_is_nobodys_model() -> None:
    """It is among the worst of a population, never among the best."""
    dice = SimpleNamespace(choice=lambda found: found[0])
    values = [float("nan"), 1.0, 2.0, 3.0, float("nan"), 4.0, 5.0, 6.0]
    trials = [member(i, {5: v}) for i, v in enumerate(values)]
    better = [population.model_for(t, trials, False, 1, dice) for t in trials]
    assert [b is not None for b in better] == [True, False, False, False, True, False, False, False]
    assert {b.number for b in better if b is not None} == {1}


def test_nobody_goes_on_from_a_trial_that_has_ended() -> None:
    """There is nothing left to train."""
    dice = SimpleNamespace(choice=lambda found: found[0])
    trials = [member(i, {5: float(i)}) for i in range(8)]
    for ended, better in ((0, 1), (1, 0)):
        trials[0].state = trials[1].state = optuna.trial.TrialState.RUNNING
        trials[ended].state = optuna.trial.TrialState.COMPLETE
        found = population.model_for(trials[7], trials, False, 1, dice)
        assert found is not None and found.number == better
    trials[0].state = optuna.trial.TrialState.COMPLETE
    trials[1].state = optuna.trial.TrialState.COMPLETE
    assert population.model_for(trials[7], trials, False, 1, dice) is None


def test_brackets_do_not_become_smaller(tuner: Any, study: Study) -> None:
    words = ("run", study(steps=1, pace=0), "--algorithm", "sha", "--gpus", "2")
    assert tuner(*words, "--trials", "3")[0] == 0
    code, _, said = tuner(*words, "--trials", "2")
    assert code == 1 and "begun with 3 trials" in said and "give --trials 3 or more" in said


def test_what_an_algorithm_of_ones_own_raises_is_one_line(tuner: Any, study: Study) -> None:
    text = PLAIN.format(before="pass") + "\ndef search(executor):\n    raise ValueError('no luck\\nat all')\n"
    code, _, said = tuner("run", study(text), "--algorithm", "study.py:search", "--gpus", "1")
    assert code == 1 and said.strip() == f"hadar: {tuner.folder}/study.py, line 6: ValueError: no luck"


@pytest.mark.parametrize("ending", ["pass", "raise KeyError('x')"])
@pytest.mark.thorough
def test_what_an_algorithm_of_ones_own_leaves_is_not_left_running(ending: str, tuner: Any, study: Study) -> None:
    """Trials that it has asked for and never submitted, or submitted to a group in which it then raised; the next
    search takes them up, and leaves them as it found them."""
    text = PLAIN.format(before="pass") + (
        "\ndef search(tuner):\n    numbers = [tuner.book.ask() for _ in range(3)]\n    with tuner.group() as group:\n"
        f"        group.submit(numbers[0])\n        {ending}\n"
    )
    words = ("run", study(text), "--algorithm", "study.py:search", "--gpus", "1")
    code, _, said = tuner(*words)
    states = [t.state.name for t in tuner.trials()]
    if ending == "pass":
        assert code == 0 and states == ["COMPLETE", "WAITING", "WAITING"], said
    else:
        assert code == 1 and "KeyError: 'x'" in said and states == ["WAITING"] * 3
        tuner(*words)
        assert [t.state.name for t in tuner.trials()] == ["WAITING"] * 6
