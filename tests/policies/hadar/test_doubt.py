"""What may be longer than expected is not left until it is too late."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.model import Node, Speed
from slurm_hadar.model.length import NORMAL, Length
from slurm_hadar.policies import get
from slurm_hadar.policies.hadar.lookahead.estimates import doubt

SHARE = NORMAL.inv_cdf(0.8)


def guessed(job: Any, error: Any, job_id: str = "1", steps: Any = 1e5, measured: Any = False) -> Any:
    return replace(
        job(job_id, 1, steps=steps, restart_cost_s=1.0),
        speeds={"v100": Speed(10.0, error=error, measured=measured), "k80": Speed(1.0)},
    )


def test_what_is_known_is_not_doubted(job: Any) -> None:
    """A measured speed and a stated length are what they are; so is a speed of which no error is told."""
    assert doubt.longer(guessed(job, 0.3, measured=True), "v100", 1) == 1.0
    assert doubt.longer(guessed(job, None), "v100", 1) == 1.0
    assert doubt.longer(guessed(job, 0.3), "k80", 1) == 1.0


def test_an_estimated_speed_is_doubted_by_its_error(job: Any) -> None:
    """The 80th percentile of a log-normal error, and no more than four times."""
    assert doubt.longer(guessed(job, 0.3), "v100", 1) == pytest.approx(1.3**SHARE)
    assert doubt.longer(guessed(job, 1e9), "v100", 1) == doubt.MOST


def test_a_predicted_length_is_doubted_by_its_range(job: Any) -> None:
    """The 80th percentile of what is left, which is further off the less is known."""
    predicted = replace(job("1", 1), total_steps=None, predicted_steps=1e4, predicted_range=(5e3, 2e4))
    assert doubt.longer(predicted, "v100", 1) == pytest.approx(Length(5e3, 2e4).left(0.8, 0.0) / 1e4)
    wider = replace(predicted, predicted_range=(4e3, 2.5e4))
    assert doubt.longer(wider, "v100", 1) > doubt.longer(predicted, "v100", 1) > 1.0


def test_two_errors_are_more_than_one_and_less_than_their_product(job: Any) -> None:
    """They seldom are large at once."""
    speed = doubt.longer(guessed(job, 0.5), "v100", 1)
    length = replace(guessed(job, None), total_steps=None, predicted_steps=1e4, predicted_range=(5e3, 2e4))
    alone = doubt.longer(length, "v100", 1)
    both = doubt.longer(replace(length, speeds=guessed(job, 0.5).speeds), "v100", 1)
    assert max(speed, alone) < both < speed * alone


@pytest.mark.parametrize("error", [0.0, 0.4])
def test_the_longest_job_starts_at_once_if_it_may_be_longer(error: Any, job: Any, snapshot: Any) -> None:
    """A job as long as all others take together on eight GPUs: it can wait if its speed is certain."""
    short = [replace(guessed(job, None, str(i), steps=2e4), arrival=900.0) for i in range(56)]
    long = replace(guessed(job, error, "56", steps=1.6e5), arrival=900.0)
    plan = get("hadar").allocate(snapshot([*short, long], (Node("a", {"v100": 8}),)))
    assert bool(plan.placement("56")) == (error > 0)
