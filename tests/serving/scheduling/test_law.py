"""How much longer a batch takes than its longest request."""

from __future__ import annotations

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.serving.scheduling.law import BatchLaw
from tests.serving.scheduling.two import LAW


def test_the_law_of_batches() -> None:
    assert LAW.factors[1:5] == pytest.approx((1.0, 1.4, 1.8, 2.2))
    assert LAW.sizes() == (1, 2, 4, 8, 16)
    assert BatchLaw.linear(0.0, 12).sizes() == (1, 2, 4, 8, 12)
    assert BatchLaw.measured({1: 0.01, 2: 0.012, 4: 0.011}, 8).factors[1:] == pytest.approx(
        (1.0, 1.2, 1.2, 1.2, 1.2 + 0.2 / 3, 1.2 + 0.4 / 3, 1.2 + 0.2, 1.2 + 0.8 / 3)
    )
    with pytest.raises(ConfigError, match="from 0 to 1"):
        BatchLaw.linear(1.5, 16)
