"""Every combination of a grid once, whoever runs beside whom, and whoever is asked how often."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

optuna = pytest.importorskip("optuna")

from slurm_hadar.tuning.grid import combination  # noqa: E402
from slurm_hadar.tuning.study.book import Algorithm, Book, End, Sampler, sampler_of  # noqa: E402
from tests.tuning.conftest import PLAIN  # noqa: E402

Study = Callable[..., str]

#: What an objective asks for next, by what it has so far; None: it has all.
Space = Callable[[dict[str, Any]], tuple[str, Any] | None]
SPACES: dict[str, tuple[Space, int]] = {}


def space(combinations: int) -> Callable[[Space], Space]:
    def noted(found: Space) -> Space:
        SPACES[found.__name__] = found, combinations
        return found

    return noted


@space(12)
def flat(has: dict[str, Any]) -> tuple[str, Any] | None:
    steps = {
        "a": ("categorical", {"choices": ["x", "y"]}),
        "b": ("int", {"low": 1, "high": 3}),
        "c": ("float", {"low": 0.0, "high": 0.5, "step": 0.5}),
    }
    return next(((name, step) for name, step in steps.items() if name not in has), None)


@space(8)
def conditional(has: dict[str, Any]) -> tuple[str, Any] | None:
    if "kind" not in has:
        return "kind", ("categorical", {"choices": ["none", "int", "pair"]})
    if has["kind"] == "int" and "n" not in has:
        return "n", ("int", {"low": 2, "high": 6, "step": 2})
    if has["kind"] == "pair":
        name = next((name for name in ("m", "k") if name not in has), None)
        return None if name is None else (name, ("int", {"low": 0, "high": 1}))
    return None


@space(6)
def odd(has: dict[str, Any]) -> tuple[str, Any] | None:
    """Choices that are equal to each other, and parameters of one value."""
    steps = {
        "equal": ("categorical", {"choices": [True, 1, 0.5, 1.0, 0.5, "x"]}),
        "one": ("float", {"low": 1.0, "high": 1.0}),
        "same": ("int", {"low": 3, "high": 3}),
        "two": ("int", {"low": 0, "high": 1}),
    }
    return next(((name, step) for name, step in steps.items() if name not in has), None)


@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=25, deadline=None)
@given(gpus=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_each_combination_once(name: str, gpus: int, seed: int) -> None:
    """Trials ask for one parameter after the other, in any order among each other, and end in any order."""
    asks, combinations = SPACES[name]
    dice = random.Random(seed)
    sampler = sampler_of(Algorithm.GRID, Sampler.RANDOM, seed)
    book = Book(optuna.create_study(sampler=sampler), lambda _line: None)
    running: dict[int, dict[str, Any]] = {}
    while True:
        found = combination(book.trials(), dice) if len(running) < gpus else None
        if found is not None:
            running[book.ask(parameters=found or None)] = {}
            continue
        if not running:
            break
        number = dice.choice(sorted(running))
        wanted = asks(running[number])
        if wanted is None:
            del running[number]
            book.study.tell(number, dice.random())
        else:
            parameter, (kind, arguments) = wanted
            running[number][parameter] = book.suggest(number, kind, parameter, arguments)
    tried = [tuple(sorted(trial.params.items())) for trial in book.trials()]

    assert len(set(tried)) == combinations
    assert len(tried) == combinations


def test_another_trial_that_asks_for_something_else_is_refused(tmp_path: Any) -> None:
    """The others go on to the end, as they do beside one that failed before it asked; those have had their turn."""
    sampler = sampler_of(Algorithm.GRID, Sampler.RANDOM, 1)
    book = Book.open(f"sqlite:///{tmp_path}/s.db", "s", "minimize", sampler, None, print)
    first = {"low": 0, "high": 5}

    seen = set()
    for number in range(8):
        given = combination(book.trials(), random.Random(number))
        if given is None:
            break
        trial = book.ask(parameters=given or None)
        try:
            if number == 1:
                raise ValueError("before it asked")
            if number == 2:
                book.suggest(trial, "int", "y", first)
            seen.add(book.suggest(trial, "int", "x", {"low": 0, "high": 7} if number == 3 else first))
            book.tell(trial, End.COMPLETE, 0.0)
        except ValueError as error:
            told = {
                1: "before it asked",
                2: "asks for y of 0 to 5 by 1 where trial 0 has asked for x",
                3: "x of 0 to 7",
            }
            assert told[number] in str(error)
            book.tell(trial, End.FAIL)

    assert len(seen) == 3 and len(book.trials()) == 6


@pytest.mark.filterwarnings("ignore:Fixed parameter")
@pytest.mark.parametrize("wanted", [{"x": 7}, {"x": "much"}, {"x": 1, "y": "none"}, {"x": 1, "y": ["a"]}])
def test_a_trial_of_somebody_with_none_of_the_combinations_takes_none(wanted: dict[str, Any]) -> None:
    book = Book(optuna.create_study(sampler=sampler_of(Algorithm.GRID, Sampler.RANDOM, 1)), lambda _line: None)
    given: dict[str, Any] | None = {"x": 1, "y": "b"}
    while given is not None:
        trial = book.ask(parameters=given)
        try:
            book.suggest(trial, "int", "x", {"low": 0, "high": 2})
            book.suggest(trial, "categorical", "y", {"choices": ["a", "b"]})
            book.tell(trial, End.COMPLETE, 0.0)
        except ValueError:  # Optuna's word for what is none of the choices
            book.tell(trial, End.FAIL)
        given = combination(book.trials(), random.Random(trial)) if trial else wanted
    tried = {(t.params["x"], t.params["y"]) for t in book.trials() if len(t.params) == 2}

    assert tried >= {(x, y) for x in range(3) for y in "ab"}


def test_a_grid_is_tried_once(tuner: Any, study: Study) -> None:
    """By several at a time, and when it is asked for more, and again."""
    text = (
        "def objective(trial):\n    return trial.suggest_int('x', 1, 2) + trial.suggest_categorical('y', [0.5, 0.25])\n"
    )
    for _ in range(2):
        code, out, said = tuner("run", study(text), "--trials", "9", "--algorithm", "grid", "--gpus", "3")
        assert code == 0, said
        assert "trials: 4 complete" in out
    assert sorted(t.value for t in tuner.trials()) == [1.25, 1.5, 2.25, 2.5]


@pytest.mark.thorough
def test_a_grid_of_floats_without_a_step_is_said_once(tuner: Any, study: Study) -> None:
    """Each further trial would fail alike; with a step the search goes on with the one that has asked."""
    words = ("run", study(PLAIN, before="pass"), "--trials", "4", "--algorithm", "grid", "--gpus", "2")
    code, _, said = tuner(*words)
    assert code == 1 and said.startswith("hadar: --algorithm grid: parameter 'x' is any float from 0 to 1: give "), said
    assert len(said.splitlines()) == 1 and [t.state.name for t in tuner.trials()] == ["WAITING"]

    study(PLAIN.replace("0, 1)", "0, 1, step=0.5)"), before="pass")
    assert tuner(*words)[0] == 0
    assert sorted(t.value for t in tuner.trials()) == [0, 0.5, 1]
