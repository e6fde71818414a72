"""The example of docs/writing-policies.md keeps the contract, and is what the page prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.policy import WidestFirst
from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Form, Job, Node, Snapshot, Speed
from slurm_hadar.policies import Policy
from slurm_hadar.testing.policies import PolicyContract

ROOT = Path(__file__).resolve().parents[2]


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return WidestFirst()


def test_wide_gangs_first_and_slow_types_refused() -> None:
    """The later, wider job takes the fast node; with a share the other waits rather than take the slow one."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"k80": 2}))
    speeds = {"v100": Speed(8.0), "k80": Speed(1.0)}
    narrow, wide = (Job(n, Form(int(n)), arrival=float(n), speeds=speeds) for n in "12")
    snapshot = Snapshot(100.0, nodes, (narrow, wide))

    plan, picky = WidestFirst().allocate(snapshot), WidestFirst(share=0.5).allocate(snapshot)

    assert {j: p.nodes for j, p in plan.placements.items()} == {"1": ("b",), "2": ("a",)}
    assert set(picky.placements) == {"2"} and "wider gangs" in picky.waits["1"].why
    with pytest.raises(ConfigError, match="share"):
        WidestFirst(share=-1.0)


def test_the_page_prints_this_file() -> None:
    """Without its docstring at the top."""
    text = (ROOT / "examples" / "policy.py").read_text().partition("\n\n")[2]

    assert f"```python\n{text}```" in (ROOT / "docs" / "writing-policies.md").read_text()
