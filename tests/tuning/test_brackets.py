"""Rungs and brackets of a search: how many trials each has, and who goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.tuning.algorithms import brackets_of, promoted
from slurm_hadar.tuning.search import Search
from slurm_hadar.tuning.study.book import Algorithm


def test_successive_halving_leaves_one() -> None:
    (bracket,) = brackets_of(Search(Algorithm.SHA, 81))
    assert bracket.trials == 81 and bracket.rungs == (1, 3, 9, 27)
    (bracket,) = brackets_of(Search(Algorithm.SHA, 81, first_rung=2, longest=20))
    assert bracket.rungs == (2, 6)


def test_hyperbands_brackets() -> None:
    """Those of the paper's example, R = 81 and eta = 3, but for what it rounds otherwise."""
    found = brackets_of(Search(Algorithm.HYPERBAND, 143, longest=81))
    assert [b.trials for b in found] == [81, 34, 15, 8, 5]
    assert [b.rungs for b in found] == [(1, 3, 9, 27), (3, 9, 27), (9, 27), (27,), ()]


@given(st.integers(1, 500), st.integers(2, 5), st.sampled_from((Algorithm.SHA, Algorithm.HYPERBAND)))
def test_brackets_have_all_trials(trials: int, eta: int, algorithm: Algorithm) -> None:
    found = brackets_of(Search(algorithm, trials, eta))
    assert sum(b.trials for b in found) == trials and all(b.trials > 0 for b in found)
    assert all(list(b.rungs) == sorted(set(b.rungs)) for b in found)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(2, 5), st.booleans())
def test_the_best_are_promoted(values: list[float], eta: int, maximize: bool) -> None:
    go_on = promoted(list(enumerate(values)), len(values), eta, maximize)
    assert len(go_on) == max(1, len(values) // eta)
    sign = -1 if maximize else 1
    others = [v for n, v in enumerate(values) if n not in go_on]
    assert not others or max(sign * values[n] for n in go_on) <= min(sign * v for v in others)
