"""What a script puts in place of numbers of its data is what a resumed run has, or is left alone."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, WeightedRandomSampler  # noqa: E402

from slurm_hadar.runtime.batches.data import Feed  # noqa: E402


class Weighted(Dataset[Any]):
    """With a number for each sample, all whole at first."""

    def __init__(self) -> None:
        self.weights: list[Any] = [1] * 8

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        return i


class Fading(IterableDataset[Any]):
    def __init__(self) -> None:
        self.share: float = 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def resumed(feed: Feed, again: Feed) -> Feed:
    again.restore(feed.position(), feed.random_states())
    again.next()
    return again


@pytest.mark.parametrize("value", [0.25, -3, 2**70, "hard", None, True], ids=str)
def test_a_list_of_whole_numbers_that_has_other_plain_values(value: Any) -> None:
    """It comes back as it is: fractions are not cut off."""
    data, later = Weighted(), Weighted()
    feed = Feed(DataLoader(data, 2))
    feed.next()
    data.weights[2], data.weights[5] = value, 7
    resumed(feed, Feed(DataLoader(later, 2)))
    assert later.weights == data.weights and type(later.weights[2]) is type(value)


@pytest.mark.parametrize(
    "what", [torch.ones(2), torch.ones(2).numpy(), object(), [1]], ids=["tensor", "array", "", "list"]
)
def test_a_list_of_whole_numbers_that_has_become_a_cache(what: Any) -> None:
    """Its samples are in no checkpoint, and what the script has put there stays."""
    data, later = Weighted(), Weighted()
    feed = Feed(DataLoader(data, 2))
    feed.next()
    data.weights[2] = what
    again = Feed(DataLoader(later, 2))
    again.restore(feed.position(), feed.random_states())
    later.weights[0] = what
    again.next()
    assert later.weights[0] is what and data.weights[2] is what


def test_buckets_that_have_become_something_else() -> None:
    """As a list of lists of indices where one is a number now."""
    data, later = Weighted(), Weighted()
    data.weights, later.weights = [[1, 2], [3]], [[1, 2], [3]]
    feed = Feed(DataLoader(data, 2))
    feed.next()
    data.weights[1] = 3
    resumed(feed, Feed(DataLoader(later, 2)))
    assert later.weights == [[1, 2], [3]]


def test_subsets_of_data_that_are_asked_for_by_name() -> None:
    """Another choice of names is another subset."""
    named = {name: n for n, name in enumerate("abcd")}
    one, same, other = (Feed(DataLoader(Subset(named, list(chosen)), 2)) for chosen in ("abc", "abc", "abd"))
    assert one.next().tolist() == [0, 1]
    assert one.made_of == same.made_of != other.made_of


def test_weights_of_another_precision() -> None:
    """By them a sampler draws otherwise, though they are equal."""

    def fresh() -> tuple[Feed, WeightedRandomSampler]:
        torch.manual_seed(3)
        sampler = WeightedRandomSampler([1.0] * 8, 8)
        return Feed(DataLoader(list(range(8)), 2, sampler=sampler)), sampler

    feed, sampler = fresh()
    feed.next()
    sampler.weights = torch.ones(8)
    position, states = feed.position(), feed.random_states()
    expected = [feed.next().tolist() for _ in range(11)]
    again, sampler = fresh()
    again.restore(position, states)
    assert [again.next().tolist() for _ in range(11)] == expected
    assert sampler.weights.dtype is torch.float32


@pytest.mark.parametrize("value", [0.5, 3, float("inf"), 1 << 2000], ids=["fraction", "whole", "infinite", "huge"])
def test_a_whole_number_that_has_become_another_one(value: float) -> None:
    """Of a stream that sets it itself, or a loop that does."""
    data, later = Fading(), Fading()
    feed = Feed(DataLoader(data, 2))
    feed.next()
    data.share = value
    resumed(feed, Feed(DataLoader(later, 2)))
    assert later.share == value and type(later.share) is type(value)


def test_what_the_loop_sets_in_its_loader_counts_from_the_next_epoch_on() -> None:
    """As in an ordinary loop, also where the epoch is resumed."""
    loader: Any = DataLoader(list(range(8)), 2)
    feed = Feed(loader)
    feed.next()
    loader.collate_fn = sum
    assert [feed.next() for _ in range(3)][-1].tolist() == [6, 7]
    assert [feed.next() for _ in range(2)] == [1, 5]
    later: Any = DataLoader(list(range(8)), 2)
    again = Feed(later)
    again.restore(feed.position(), feed.random_states())
    later.collate_fn = sum
    assert again.next() == 9


def test_data_whose_length_is_not_implemented() -> None:
    """Of a class that has to have the method, as its base says; nobody asks in an ordinary loop."""

    class Endless(IterableDataset[Any]):
        def __len__(self) -> int:
            raise NotImplementedError

        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    feed = Feed(DataLoader(Endless(), 2))
    other = iter(DataLoader(Endless(), 2))
    next(other)
    assert [feed.next().tolist() for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]
    assert feed.epoch_batches is None and not feed.keeps_iterators
