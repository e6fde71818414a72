"""How the search algorithms use trial groups: each synchronous rung is one. Samplers and pruners are Optuna's.

What a rung decides is a function of the study alone, so that a search that was cut off goes on as if it had not been.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_hadar.tuning.executor.executor import Executor
from slurm_hadar.tuning.executor.group import Leg
from slurm_hadar.tuning.grid import combination
from slurm_hadar.tuning.population import Place
from slurm_hadar.tuning.search import Search
from slurm_hadar.tuning.study.book import Algorithm, Book, End

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["BRACKET", "Bracket", "brackets_of", "promoted", "search", "take_up", "value_at"]

BRACKET = "hadar:bracket"


@dataclass(frozen=True, slots=True)
class Bracket:
    """``trials`` that begin together, and the reports at which their rungs are; after the last rung a trial runs to
    its end."""

    trials: int
    rungs: tuple[int, ...]


def search(executor: Executor, what: Search) -> None:
    """Run the search, or what is left of it. Raises what the executor does."""
    take_up(executor)
    if what.algorithm is Algorithm.PBT:
        replaced: dict[int, int] = {}
        with executor.group(what.deadline_s) as group:
            for slot in range(min(what.trials, what.population)):
                group.follow(Place(executor, what, slot, replaced).legs())
        return
    if what.algorithm in (Algorithm.SHA, Algorithm.HYPERBAND):
        brackets = list(enumerate(brackets_of(what)))
        for together in [[one] for one in brackets] if what.learns else [brackets]:
            with executor.group(what.deadline_s) as group:
                for index, bracket in together:
                    group.follow(_halving(executor, what, index, bracket))
        return
    _all_at_once(executor, what)


def take_up(executor: Executor) -> None:
    """What an earlier tuner has left unfinished is this one's."""
    for trial in executor.book.trials():
        executor.state.remember(trial)
        if not trial.state.is_finished():
            executor.book.take_up(trial)


def brackets_of(what: Search) -> list[Bracket]:
    """Of successive halving one with all trials, whose last rung leaves one; of Hyperband as many whole ones as the
    trials allow, over and over (Li et al., JMLR 2018, algorithm 1). Without ``longest`` the most aggressive bracket is
    as deep as the number of trials allows."""
    eta, first = what.eta, what.first_rung
    if what.algorithm is Algorithm.SHA:
        depth = _log(what.trials, eta)
        if what.longest is not None:
            depth = min(depth, _log(max(1, what.longest // first), eta))
        return [Bracket(what.trials, tuple(first * eta**k for k in range(depth)))]
    if what.longest is None:
        deepest = 0
        while _round_trials(deepest + 1, eta) <= what.trials:
            deepest += 1
    else:
        deepest = _log(max(1, what.longest // first), eta)
    found, left = [], what.trials
    while left > 0:
        for s in range(deepest, -1, -1):
            count = min(left, _bracket_trials(deepest, s, eta))
            if count:
                found.append(Bracket(count, tuple(first * eta**k for k in range(deepest - s, deepest))))
                left -= count
    return found


def _log(value: int, base: int) -> int:
    """The largest k with base^k at most the value."""
    k = 0
    while base ** (k + 1) <= value:
        k += 1
    return k


def _bracket_trials(deepest: int, s: int, eta: int) -> int:
    return math.ceil((deepest + 1) * int(eta**s) / (s + 1))


def _round_trials(deepest: int, eta: int) -> int:
    return sum(_bracket_trials(deepest, s, eta) for s in range(deepest + 1))


def promoted(values: Sequence[tuple[int, float]], rung: int, eta: int, maximize: bool) -> list[int]:
    """Of a rung's (trial, value) the best, as many as a part ``1/eta`` of the ``rung`` trials in it, at least one: the
    trials that go on; ties by number."""
    ranked = sorted(values, key=lambda v: (-v[1] if maximize else v[1], v[0]))
    return sorted(number for number, _ in ranked[: max(1, rung // eta)])


def _halving(executor: Executor, what: Search, index: int, bracket: Bracket) -> Iterator[Leg]:
    """One bracket of successive halving: the way to each rung is a leg."""
    book = executor.book
    members = [t.number for t in book.trials() if t.user_attrs.get(BRACKET) == index]
    for trial in book.trials():  # made by others, or by a tuner that died while it made them
        if len(members) < bracket.trials and BRACKET not in trial.user_attrs and not trial.state.is_finished():
            book.attribute(trial.number, BRACKET, index)
            members.append(trial.number)
    members += book.ask_many(bracket.trials - len(members), {BRACKET: index})
    for rung in bracket.rungs:
        yield _leg(book, members, rung)
        values = [(t.number, v) for t in _of(book, members) if (v := value_at(t, rung)) is not None]
        go_on = promoted(values, len(members), what.eta, book.maximize)
        _drop(executor, [n for n in members if n not in go_on])
        members = go_on
    yield _leg(book, members, None)
    _drop(executor, members)  # whom a deadline has stopped


def _leg(book: Book, members: Sequence[int], rung: int | None) -> Leg:
    """Those that are not there yet."""
    behind = [
        t.number
        for t in _of(book, members)
        if not t.state.is_finished() and (rung is None or max(t.intermediate_values, default=-1) < rung)
    ]
    return Leg(tuple(behind), rung)


def _drop(executor: Executor, numbers: Sequence[int]) -> None:
    """These go no further."""
    for trial in _of(executor.book, numbers):
        if not trial.state.is_finished():
            executor.finish(trial.number, End.PRUNED if trial.intermediate_values else End.FAIL)


def _of(book: Book, members: Sequence[int]) -> list[FrozenTrial]:
    trials = book.trials()
    return [trials[number] for number in members]


def value_at(trial: FrozenTrial, rung: int) -> float | None:
    """What a trial is ranked by at a rung: its last report up to it, or its first where that comes later; one that
    ended before, by its value. None of one that failed, gave up before the rung (``optuna.TrialPruned``), has told
    nothing, or whose report is no number."""
    reports = trial.intermediate_values
    if trial.state.name == "FAIL" or (trial.state.name == "PRUNED" and max(reports, default=-1) < rung):
        return None
    if trial.state.name == "COMPLETE" and max(reports, default=-1) <= rung:
        return trial.value
    if not reports:
        return None
    value = reports[max((step for step in reports if step <= rung), default=min(reports))]
    return value if math.isfinite(value) else None


def _all_at_once(executor: Executor, what: Search) -> None:
    """One group of all trials, made as GPUs come free for them."""
    book = executor.book
    unfinished = [t.number for t in book.trials() if not t.state.is_finished()]
    missing = what.trials - len(book.trials())
    with executor.group(what.deadline_s) as group:
        for number in unfinished:
            group.submit(number)
        group.feed(_maker(book, what), max(0, missing))
    _drop(executor, [live.number for live in group.members])  # whom a deadline has stopped


def _maker(book: Book, what: Search) -> Callable[[], int | None]:
    """Makes trials; of a grid while there is a combination that nobody has."""
    if what.algorithm is not Algorithm.GRID:
        return book.ask

    def of_the_grid() -> int | None:
        trials = book.trials()
        found = combination(trials, random.Random(f"{what.seed} {len(trials)}"))
        return None if found is None else book.ask(parameters=found or None)

    return of_the_grid
