"""How many examples hypothesis draws. The same in every run, so that what fails fails again; with
``HYPOTHESIS_PROFILE=quick`` a quarter of them (``make check``, ``make test``), and with ``explore`` new ones each time,
and those that fail are kept in ``.hypothesis``."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

_USUAL = 60
# a machine that is busy with other things is no failure
_patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, max_examples=_USUAL, **_patient)
settings.register_profile("quick", derandomize=True, max_examples=_USUAL // 4, **_patient)
settings.register_profile("explore", max_examples=400, print_blob=True, **_patient)


def examples(count: int, **more: Any) -> settings:
    """Settings of a test that wants more or fewer examples than others: ``count``, and in other profiles in proportion.
    ``more`` are further settings of hypothesis."""
    return settings(max_examples=max(5, count * settings().max_examples // _USUAL), **more)
