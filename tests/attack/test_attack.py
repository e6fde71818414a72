"""Hostile users on purpose, in short; ``make attack`` goes on for as long as one likes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.attack.blocked import measure, stage
from benchmarks.attack.episode import Plan, play
from benchmarks.attack.people import may_act_as_others
from benchmarks.fuzz import words
from slurm_hadar.cluster import PrivateCluster

needs_root = pytest.mark.skipif(not may_act_as_others(), reason="only root can act as several users")


@pytest.mark.slurm
@needs_root
@pytest.mark.timeout(420)
@pytest.mark.thorough
def test_a_short_episode(tmp_path: Path) -> None:
    """Some sixty hostile deeds within twenty seconds, under an operator's rights: all that must hold does."""
    plan = Plan(2, "operator", "hadar", False, 20.0, every_s=0.25, chains=1)

    episode = play(plan, print, tmp_path)

    assert episode.problems == []
    assert sum(episode.deeds.values()) >= 20 and episode.honest >= 10


@pytest.fixture(scope="module")
def limited() -> Iterator[PrivateCluster]:
    """A cluster with limits."""
    with stage() as cluster:
        yield cluster


@pytest.mark.slurm
@needs_root
@pytest.mark.timeout(420)
@pytest.mark.parametrize("kind", [pytest.param("qos", marks=pytest.mark.thorough), "throttle"])
def test_blocked_jobs_keep_nobody_waiting(limited: PrivateCluster, kind: str) -> None:
    """Beside jobs that Slurm does not start, six others start within two rounds after they would without us."""
    found = measure(limited, kind, jobs=10, round_s=3.0, longest_s=40.0)

    assert found.ok, found.as_dict()


def test_an_episode_is_a_function_of_its_seed() -> None:
    """Whose rights, which policy, with or without the plug-in."""
    assert Plan.of(7) == Plan.of(7)
    assert {(p.regime, p.policy, p.plugins) for p in map(Plan.of, range(12))} == {
        (regime, policy, plugins)
        for regime in ("operator", "plain")
        for policy in ("hadar", "gavel_las", "tiresias")
        for plugins in (False, True)
    }


def test_hostile_words_are_drawn_alike() -> None:
    """The same generator, the same job."""
    draws = [words.hostile(random.Random(3), "4_1", ["a", "b"], "/tmp", 1e9) for _ in range(2)]

    assert draws[0] == draws[1] and draws[0]["array_id"] == "4"
