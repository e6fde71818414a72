"""Random number generators on several GPUs, which this machine need not have."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from slurm_hadar.runtime import rng  # noqa: E402


class Gpus:
    """In the place of ``torch.cuda``'s generators, by number; one GPU is the current one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, states: list[int], current: int) -> None:
        self.states, self.current = states, current
        for name in ("is_available", "is_initialized"):
            monkeypatch.setattr(torch.cuda, name, lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: self.states[self.current])
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(self.states))
        monkeypatch.setattr(torch.cuda, "set_rng_state", self._set)

    def _set(self, state: Any, number: int | None = None) -> None:
        self.states[self.current if number is None else number] = state


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_the_generators_of_all_gpus_go_on(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """As of a model whose layers are on several, with dropout on each."""
    Gpus(monkeypatch, [*range(gpus)], current=0)
    states = rng.capture()
    after = Gpus(monkeypatch, [-1] * gpus, current=0)
    rng.restore(states)
    assert after.states == [*range(gpus)]


@pytest.mark.parametrize("now", [1, 2, 8])
def test_a_worker_that_has_another_gpu_now_goes_on_with_its_own(monkeypatch: pytest.MonkeyPatch, now: int) -> None:
    """There may be fewer GPUs, too."""
    Gpus(monkeypatch, [10, 11, 12, 13], current=3)
    states = rng.capture()
    after = Gpus(monkeypatch, [-1] * now, current=0)
    rng.restore(states)
    assert after.states[0] == 13


def test_gpus_are_seeded_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """For copies of a forked job, which differ by it; not for the order of data."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    before = rng.capture()
    try:
        rng.seed(1, 2)
        assert seeds == []
        rng.seed(1, 2, gpus=True)
        rng.seed(1, 3, gpus=True)
    finally:
        rng.restore(before)
    assert len(set(seeds)) == 2
