"""Loaders that keep their workers draw a number when they start them, and in a resumed training start them again."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from slurm_hadar.runtime.batches.data import Feed  # noqa: E402
from slurm_hadar.runtime.batches.kept import Kept  # noqa: E402

DATA = TensorDataset(torch.arange(12.0))


def loader(kept: bool = True, shuffle: bool = False, **more: Any) -> Any:
    return DataLoader(DATA, batch_size=4, num_workers=1, persistent_workers=kept, shuffle=shuffle, **more)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """No loader of another test counts."""
    gc.collect()
    Kept.resume(0)
    Kept.watch()
    before = Kept.count()
    yield
    Kept.resume(0)
    gc.collect()
    assert Kept.count() == before


def state() -> bytes:
    return bytes(torch.get_rng_state().numpy().tobytes())


def test_what_was_drawn_before_is_not_drawn_again() -> None:
    have = Kept.count()
    Kept.resume(have + 1)
    first, second = loader(), loader()
    before = state()
    assert [len(list(first)) for _ in range(2)] == [3, 3]
    assert state() == before and Kept.owed == 0
    list(second)
    assert state() != before and Kept.count() == have + 2


@pytest.mark.parametrize("more", [{"kept": False}, {"generator": torch.Generator()}])
def test_who_draws_each_time_or_for_itself_is_not_meant(more: Any) -> None:
    have = Kept.count()
    Kept.resume(have + 1)
    list(loader(**more))
    assert Kept.owed == 1 and Kept.count() == have + 1


def test_shuffles_are_those_of_a_later_epoch() -> None:
    torch.manual_seed(0)
    kept = loader(shuffle=True)
    list(kept)
    states = torch.get_rng_state()
    expected = [[x.tolist() for (x,) in kept] for _ in range(2)]
    torch.set_rng_state(states)
    Kept.resume(Kept.count() + 1)
    again = loader(shuffle=True)

    assert [[x.tolist() for (x,) in again] for _ in range(2)] == expected


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("function", [False, True])
def test_a_position_is_found_again_among_such_loaders(stop: int, function: bool) -> None:
    def begun(loaders: list[Any]) -> Feed:
        return Feed((lambda: loaders[0]) if function else loaders[0])

    def go_on(feed: Feed, loaders: list[Any], until: int) -> list[Any]:
        found = []
        while feed.epoch * 3 + feed.index < until:
            found.append((feed.next()[0].tolist(), torch.rand(1).item()))
            if (feed.epoch * 3 + feed.index) % 2 == 0:
                list(loaders[1])
        return found

    torch.manual_seed(0)
    loaders = [loader(shuffle=True), loader()]
    feed = begun(loaders)
    go_on(feed, loaders, stop)
    position, states = feed.position(), feed.random_states()
    expected = go_on(feed, loaders, 10)
    del feed, loaders
    gc.collect()
    loaders = [loader(shuffle=True), loader()]
    resumed = begun(loaders)
    resumed.restore(position, states)

    assert go_on(resumed, loaders, 10) == expected
