"""Colours that cannot be mistaken."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.web.colours import PALETTE, by_job, spread

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB: without red, green and blue cones
SIGHTS = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Ottosson (2020)
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def linear(colour: str) -> np.ndarray:
    levels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("sight", SIGHTS)
def test_any_two_differ_for_everybody(sight: str) -> None:
    """At least 0.1 in Oklab, several times what eyes tell apart side by side, for each kind of colour vision."""
    seen = [np.clip(np.asarray(SIGHTS[sight]) @ linear(fill), 0, 1) for fill, _ in PALETTE]
    points = [np.asarray(TO_OKLAB) @ np.cbrt(np.asarray(TO_CONES) @ rgb) for rgb in seen]

    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(points, 2)) > 0.1


def test_text_and_paper_stand_out() -> None:
    """Ids are read on every fill (4.5), and every fill is seen on light and on dark paper."""
    for fill, text in PALETTE:
        levels = sorted((luminance(fill), luminance(text)))
        assert (levels[1] + 0.05) / (levels[0] + 0.05) >= 4.5
        assert 1.05 / (luminance(fill) + 0.05) >= 1.6
        assert (luminance(fill) + 0.05) / (luminance("#15191f") + 0.05) >= 1.9


JOBS = st.lists(
    st.tuples(st.integers(1, 10**6).map(str), st.sets(st.integers(0, 30), min_size=1, max_size=3)),
    min_size=1,
    max_size=40,
    unique_by=lambda job: job[0],
)


@given(JOBS)
def test_few_jobs_have_colours_of_their_own(jobs: list[tuple[str, set[int]]]) -> None:
    """As many as there are colours never share one, whatever they would like."""
    few = jobs[: len(PALETTE)]
    colours = spread((job, by_job(job), places) for job, places in few)

    assert len(set(colours.values())) == len(few)


@given(JOBS)
def test_jobs_on_one_node_differ(jobs: list[tuple[str, set[int]]]) -> None:
    """However many there are: only where a node holds more jobs than there are colours two of them are alike."""
    colours = spread((job, by_job(job), places) for job, places in jobs)

    for place in range(31):
        here = [job for job, places in jobs if place in places]
        touching = {job for job, places in jobs for other in here if places & dict(jobs)[other]}
        if len(touching) <= len(PALETTE):
            assert len({colours[job] for job in here}) == len(here)


@given(JOBS)
def test_a_new_job_changes_no_other_colour(jobs: list[tuple[str, set[int]]]) -> None:
    """Those before it keep theirs, and those that are given are kept."""
    shown = [(job, by_job(job), places) for job, places in jobs]
    before = spread(shown[:-1])

    assert before.items() <= spread(shown).items()
    assert before.items() <= spread(reversed(shown), before).items()
