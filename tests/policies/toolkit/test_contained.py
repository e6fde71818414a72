"""A policy that fails in whatever way is a PolicyError that names it."""

import subprocess
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from slurm_hadar.errors import ConfigError, PolicyError
from slurm_hadar.model import Plan, Snapshot
from slurm_hadar.policies import Policy
from slurm_hadar.policies.toolkit.contained import as_it_is


class Odd(Exception):
    """Of its author's own."""


def failing(act: Callable[[], Any]) -> Policy:
    class Ill(Policy):
        name: ClassVar[str] = "ill"

        def allocate(self, snapshot: Snapshot) -> Plan:
            del snapshot
            return act()

    return Ill()


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), Odd("no"), ModuleNotFoundError("no"), MemoryError(), StopIteration(), SystemExit(3),
     subprocess.CalledProcessError(1, "x"), PolicyError("no plan today"), ConfigError("no price"), RecursionError()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_whatever_is_raised_names_the_policy(error: BaseException) -> None:
    def act() -> Any:
        raise error

    with pytest.raises(PolicyError, match=r"^policy ill failed: "):
        failing(act).allocate(Snapshot(0.0, (), ()))


@pytest.mark.parametrize(
    ("plan", "why"),
    [(None, "is of type NoneType"), ({}, "is of type dict"), (Plan("ill", waits={"1": "later"}), "the wait of '1' is"),  # type: ignore[dict-item]
     (Plan("ill", placements={"1": {"a": 1}}), "the placement of '1' is"),  # type: ignore[dict-item]
     (Plan("ill", prices={("a", "v100"): float("nan")}), "the price of"),
     (Plan("ill", prices={"x": 1.0}), "there is a price of 'x'"),  # type: ignore[dict-item]
     (Plan("ill", payoffs={"1": "much"}), "the payoff of '1' is")],  # type: ignore[dict-item]
)  # fmt: skip
def test_a_plan_that_is_none_is_refused(plan: Any, why: str, job: Any, snapshot: Any) -> None:
    with pytest.raises(PolicyError, match=f"^policy ill .*{why}"):
        failing(lambda: plan).allocate(snapshot([job("1")]))


def test_what_nobody_decides_stays_as_it_is(job: Any, running: Any, snapshot: Any) -> None:
    found = as_it_is(snapshot([job("1"), running("2", {"a": {"v100": 1}})]), "ill", "policy ill failed")

    assert found.abstains and set(found.placements) == {"2"}
    assert found.waits["1"].why == "left to Slurm (policy ill failed)"
