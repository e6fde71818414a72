"""Optuna's samplers, where a search that trials run beside each other, and that may be cut off, needs more of them."""

from __future__ import annotations

import random
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, BruteForceSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

__all__ = ["CombinationSampler", "RepeatableSampler"]


class CombinationSampler(BruteForceSampler):
    """Optuna's, without its look at all trials when one has ended: it would stop a loop of Optuna's own, and raises for
    a trial that has failed before it had asked for everything."""

    def after_trial(self, *_: Any) -> None:
        """Nothing."""


class RepeatableSampler(BaseSampler):
    """Optuna's ``RandomSampler``, anew for each parameter of each trial: what it draws hangs on the seed, the trial's
    number and the parameter's name alone (our definition). So a search that was cut off draws as if it had not been,
    and so does one whose trials ask in another order."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def infer_relative_search_space(self, *_: Any) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, *_: Any) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        dice = random.Random(f"{self._seed} {trial.number} {param_name}")
        sampler = RandomSampler(seed=dice.getrandbits(32))
        return sampler.sample_independent(study, trial, param_name, param_distribution)
