"""Every policy of the package keeps the contract."""

from typing import Any

import pytest

from slurm_hadar.policies import get
from slurm_hadar.testing.policies import PolicyContract

SETTINGS = [
    ("none", {}),
    ("fifo", {}),
    ("slurm", {}),
    ("slurm", {"interval_s": 3600.0, "depth": 2}),
    ("hadar", {}),
    ("hadar", {"objective": "ttd"}),
    ("hadar", {"objective": "ftf"}),
    ("hadar", {"objective": "deadline"}),
    ("hadar", {"frontier": 0.5, "switch_gain": 0.0}),
    ("hadar", {"fair_share": "user", "fairness": 0.5}),
    ("hadar", {"patience_s": 1e5}),
    ("hadar", {"prices": "round", "objective": "ftf"}),
    ("hadar", {"prices": "round", "frontier": 0.5, "switch_gain": 0.0, "effort": 1}),
    ("hadar", {"prices": "round", "fill": False, "patience_s": 1e5}),
    ("hadare", {}),
    ("hadare", {"objective": "ttd", "fork": "idle"}),
    ("hadare", {"fork": "spread", "switch_gain": 0.0}),
    ("hadare", {"fork": "auto", "objective": "deadline"}),
    ("hadare", {"prices": "round"}),
    ("gavel_las", {}),
    ("gavel_las", {"aware": False}),
    ("gavel_las", {"packed": True}),
    ("gavel_ftf", {"reset_s": 0}),
    ("gavel_ttd", {}),
    ("gavel_throughput", {"normalised": True}),
    ("gavel_cost", {"aware": False}),
    ("tiresias", {}),
    ("tiresias", {"starvation": 1.0, "consolidate_below": 0.5, "thresholds": "10,1000"}),
    ("srtf", {"service": True}),
    ("allox", {"window": 2}),
    ("asrpt", {}),
    ("asrpt", {"kappa": 1.0, "theta": 1.0, "epsilon": 0.0, "reserve": 3, "pace": 0.1}),
    ("spwf", {}),
    ("wcs_duration", {}),
    ("wcs_subtime", {}),
]


@pytest.fixture(params=SETTINGS, ids=lambda s: "-".join([s[0], *(f"{k}={v}" for k, v in s[1].items())]))
def policy(request: pytest.FixtureRequest) -> Any:
    name, params = request.param
    return get(name, **params)


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self, policy: Any) -> Any:
        """Each registered policy in turn."""
        return policy
