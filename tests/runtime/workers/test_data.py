"""The feed gives, from any position, the batches that an undisturbed loop would have had."""

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip

from slurm_hadar.runtime.batches.data import Feed  # noqa: E402


class Loaded(Dataset[Any]):
    """Counts what is loaded, and draws a random number per item, as augmentation does."""

    def __init__(self) -> None:
        self.loads = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Any:
        self.loads += 1
        return i + torch.rand(())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(20))


class Shuffled(Sampler[int]):
    """Orders by a generator of its own, whatever its kind."""

    def __init__(self, generator: Any) -> None:
        self.dice = generator

    def __iter__(self) -> Iterator[int]:
        order = list(range(20))
        self.dice.shuffle(order)
        return iter(order)


class Counting(Sampler[int]):
    """Orders by the number of the epoch, which it counts itself."""

    def __init__(self) -> None:
        self.size, self.passes = 20, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(torch.randperm(self.size, generator=torch.Generator().manual_seed(self.passes)).tolist())


class Noisy(Loaded):
    def __init__(self) -> None:
        super().__init__()
        self.noise = numpy.random.RandomState(5)

    def __getitem__(self, i: int) -> Any:
        return i + self.noise.rand()


class Normal(Noisy):
    """NumPy's generator of old keeps every second normal number: five in a batch."""

    def __getitem__(self, i: int) -> Any:
        return i + self.noise.randn()


class Spawning(Loaded):
    """A generator of its own for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = numpy.random.default_rng(5)

    def __getitem__(self, i: int) -> Any:
        return i + self.noise.spawn(1)[0].random()


class Noise:
    """A transform, or a collation, that draws."""

    def __init__(self) -> None:
        self.dice = random.Random(5)

    def __call__(self, samples: Any) -> Any:
        return samples, self.dice.random()


class Transformed(Loaded):
    def __init__(self) -> None:
        super().__init__()
        self.transform = Noise()

    def __getitem__(self, i: int) -> Any:
        return self.transform(i)


class Nested(Sampler[int]):
    """Goes through another one, as it calls it."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __iter__(self) -> Iterator[int]:
        return iter(self.base)


class OfSeveral(Sampler[int]):
    def __init__(self) -> None:
        self.dice = [numpy.random.default_rng(seed) for seed in range(2)]

    def __iter__(self) -> Iterator[int]:
        return iter([int(i) for dice in self.dice for i in dice.permutation(10)])


class CountingStream(IterableDataset[int]):
    """Orders by the number of the epoch, which it counts itself: by an attribute, or in a dict."""

    def __init__(self) -> None:
        self.epoch, self.counts = 0, {"epoch": 0}

    def __iter__(self) -> Iterator[int]:
        dice = torch.Generator().manual_seed(self.epoch + 10 * self.counts["epoch"])
        self.epoch += 1
        self.counts["epoch"] += 1
        yield from torch.randperm(20, generator=dice).tolist()


class Buckets(Sampler[list[int]]):
    """Batches of samples of about one length; these, and what is in them, are shuffled in place."""

    def __init__(self) -> None:
        self.buckets = [list(range(n, n + 4)) for n in range(0, 20, 4)]

    def __iter__(self) -> Iterator[list[int]]:
        random.shuffle(self.buckets)
        for bucket in self.buckets:
            random.shuffle(bucket)
        yield from map(list, self.buckets)


class Stateful(Sampler[int]):
    """Says itself what its state is."""

    def __init__(self) -> None:
        self._passes = torch.zeros(1, dtype=torch.long)

    def __iter__(self) -> Iterator[int]:
        self._passes += 1
        return iter(torch.randperm(20, generator=torch.Generator().manual_seed(int(self._passes))).tolist())

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self._passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._passes = state["passes"]


class Source:
    """An object of the script's own, gone through by a method of it."""

    def __init__(self) -> None:
        self.dice = numpy.random.default_rng(5)

    def batches(self) -> Iterator[int]:
        return iter(self.dice.permutation(5).tolist())


def _permuted(dice: Any = None) -> Iterator[int]:
    return iter(dice.permutation(5).tolist())


def _by_a_default() -> Callable[..., Iterator[int]]:
    def batches(*, dice: Any = None) -> Iterator[int]:
        return _permuted(dice)

    batches.__kwdefaults__ = {"dice": numpy.random.default_rng(5)}
    return batches


def _by_anothers() -> Callable[[], Iterator[int]]:
    inner = _by_functions_own()
    return lambda: inner()


def _by_functions_own() -> Callable[[], Iterator[int]]:
    dice = numpy.random.default_rng(5)
    return lambda: iter(dice.permutation(5).tolist())


def _prepared(*given: Any, dispatched: bool = False, **options: Any) -> Any:
    """As Accelerate prepares it: a batch is fetched before the one that is given is used."""
    prepare = pytest.importorskip("accelerate.data_loader").prepare_data_loader
    device = torch.device("cpu")
    return prepare(DataLoader(*given, **options), device=device, put_on_device=dispatched, dispatch_batches=dispatched)


def _numbers() -> Iterator[Any]:
    for _ in range(5):
        yield random.random()


SOURCES: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: DataLoader(TensorDataset(torch.arange(20)), batch_size=4, shuffle=True),
    "ragged": lambda: DataLoader(TensorDataset(torch.arange(18)), batch_size=4, shuffle=True),
    "one by one": lambda: DataLoader(TensorDataset(torch.arange(5)), batch_size=None, shuffle=True),
    "own generator": lambda: DataLoader(
        TensorDataset(torch.arange(20)), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "augmented": lambda: DataLoader(Loaded(), batch_size=4, shuffle=True),
    "workers": lambda: DataLoader(TensorDataset(torch.arange(20)), batch_size=4, shuffle=True, num_workers=1),
    "distributed": lambda: DataLoader(
        TensorDataset(torch.arange(40)),
        batch_size=4,
        sampler=DistributedSampler(range(40), num_replicas=2, rank=1, shuffle=True),
    ),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "list": lambda: [1, 2, 3, 4, 5],
    "factory": lambda: lambda epoch: [(epoch, i) for i in range(5)],
    "factory without epoch": lambda: _numbers,
    "numpy's in a sampler": lambda: DataLoader(range(20), 4, sampler=Shuffled(numpy.random.default_rng(5))),
    "numpy's of another kind": lambda: DataLoader(
        range(20), 4, sampler=Shuffled(numpy.random.Generator(numpy.random.MT19937(5)))
    ),
    "python's in a sampler": lambda: DataLoader(range(20), 4, sampler=Shuffled(random.Random(5))),
    "numpy's in a function": _by_functions_own,
    "numpy's in a dataset": lambda: DataLoader(Noisy(), 4, shuffle=True),
    "numpy's normal numbers": lambda: DataLoader(Normal(), 5, shuffle=True),
    "numpy's that are spawned": lambda: DataLoader(Spawning(), 4, shuffle=True),
    "its own count": lambda: DataLoader(range(20), 4, sampler=Counting()),
    "its own count, in batches": lambda: DataLoader(range(20), batch_sampler=BatchSampler(Counting(), 4, False)),
    "numpy's in a part of a dataset": lambda: DataLoader(Subset(Noisy(), range(20)), 4, shuffle=True),
    "numpy's in joined datasets": lambda: DataLoader(ConcatDataset([Noisy(), Noisy()]), 8, shuffle=True),
    "in a transform": lambda: DataLoader(Transformed(), 4, shuffle=True),
    "in a collation": lambda: DataLoader(range(20), 4, shuffle=True, collate_fn=Noise()),
    "in a sampler's sampler": lambda: DataLoader(
        range(20), 4, sampler=Nested(RandomSampler(range(20), generator=torch.Generator().manual_seed(3)))
    ),
    "several in a sampler": lambda: DataLoader(range(20), 4, sampler=OfSeveral()),
    "a method's": lambda: Source().batches,
    "a partial's": lambda: functools.partial(_permuted, numpy.random.default_rng(5)),
    "a default": _by_a_default,
    "another function's": _by_anothers,
    "a stream's own count": lambda: DataLoader(CountingStream(), 4),
    "a sampler's own state": lambda: DataLoader(range(20), 4, sampler=Stateful()),
    "buckets in a list": lambda: DataLoader(range(20), batch_sampler=Buckets()),
    "fetched ahead": lambda: _prepared(Loaded(), 4, shuffle=True),
    "fetched ahead for all": lambda: _prepared(Loaded(), 4, shuffle=True, dispatched=True),
    "fetched ahead, numpy's": lambda: _prepared(Noisy(), 4, shuffle=True),
    "fetched ahead, its own count": lambda: _prepared(Loaded(), 4, sampler=Counting()),
    "none": lambda: None,
}
STEPS = 13


def values(feed: Feed, count: int) -> list[Any]:
    """Batches as text, each followed by a random number of the training."""
    return [(repr(feed.next()), torch.rand(()).item()) for _ in range(count)]


@pytest.mark.parametrize("name", SOURCES)
def test_resuming_anywhere_gives_the_same_batches(name: str) -> None:
    """Whatever the source and the position, batches and the training's random numbers go on as if undisturbed."""

    def fresh() -> Feed:
        torch.manual_seed(7)
        random.seed(7)
        return Feed(SOURCES[name]())

    expected = values(fresh(), STEPS)
    for stop in [1, 5, 7] if name == "workers" else range(STEPS):
        feed = fresh()
        got = values(feed, stop)
        position, states = feed.position(), feed.random_states()
        torch.manual_seed(1000)
        random.seed(1000)
        again = Feed(SOURCES[name]())
        again.restore(position, states)
        assert got + values(again, STEPS - stop) == expected, f"resumed at {stop}"


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("name", [name for name in SOURCES if name != "none"])
def test_an_epoch_whose_first_batch_is_not_used_yet_has_begun(name: str, used: bool) -> None:
    """A loop over epochs around ours looks at it, leaves, and saves: the order of that epoch is drawn."""

    def fresh() -> Feed:
        torch.manual_seed(7)
        random.seed(7)
        return Feed(SOURCES[name]())

    feed = fresh()
    while not feed.epoch:
        batch = feed.next()
    feed.pass_over() if used else feed.give_back(batch)
    position, states = feed.position(), feed.random_states()
    expected = [(repr(batch), torch.rand(()).item()), *values(feed, 6)] if used else values(feed, 7)
    torch.manual_seed(1000)
    random.seed(1000)
    again = Feed(SOURCES[name]())
    again.restore(position, states)
    assert values(again, 7) == expected


class Scaled(Dataset[Any]):
    """Samples by a number that the loop sets, as where augmentation ends with a certain epoch."""

    scale = 1

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> int:
        return self.scale * i


@pytest.mark.parametrize("kind", ["workers", "function"])
def test_a_resumed_epoch_begins_with_what_the_loop_sets_for_it(kind: str) -> None:
    """Loader workers, and a function, have the dataset as it is when the first batch is asked for."""

    def fresh() -> tuple[Feed, Scaled]:
        torch.manual_seed(7)
        data = Scaled()
        loader = DataLoader(data, 5, shuffle=True, num_workers=1)
        return Feed(loader if kind == "workers" else lambda: [data[i] for i in torch.randperm(4).tolist()]), data

    feed, data = fresh()
    values(feed, 4)
    feed.next_epoch()
    data.scale = 3
    values(feed, 1)
    position, states = feed.position(), feed.random_states()
    expected = values(feed, 3)
    again, data = fresh()
    again.restore(position, states)
    data.scale = 3
    assert values(again, 3) == expected


def test_weights_that_the_loop_sets_before_a_resumed_epoch_are_not_those_that_it_began_with() -> None:
    """It goes on in the order that it has, drawn by the weights of then; the next goes by those that were set."""

    def fresh() -> tuple[Feed, WeightedRandomSampler]:
        torch.manual_seed(7)
        sampler = WeightedRandomSampler([1.0] * 20, 20)
        return Feed(DataLoader(list(range(20)), 5, sampler=sampler)), sampler

    feed, sampler = fresh()
    values(feed, 2)
    sampler.weights[3] = 50.0
    position, states = feed.position(), feed.random_states()
    expected = values(feed, 6)
    again, sampler = fresh()
    again.restore(position, states)
    assert values(again, 6) == expected


def test_a_prepared_loader_is_what_it_was_for_others() -> None:
    """Scripts ask for its class and its length; a second training may have it."""
    loader = _prepared(Noisy(), 4, shuffle=True)
    held = [Feed(loader).drawn_from for _ in range(2)]
    again = Feed(loader)
    assert isinstance(loader, DataLoader) and len(loader) == 5
    assert held[0] and all(one is other for one, other in zip(*held, strict=True))
    assert again.is_over(loader.dataset) and len(values(again, 7)) == 7


def test_generators_without_a_state_are_left_alone() -> None:
    """The system's, and a class of the script's own that has the methods of one."""

    class Other:
        def get_state(self, name: str) -> str:
            return name

        set_state = manual_seed = get_state

    class Odd(Other):
        def get_state(self, name: str = "") -> Any:
            return name or object()  # what no checkpoint may hold

    others = [random.SystemRandom(), Other(), Odd()]
    data = Loaded()
    data.__dict__["others"] = others
    feed = Feed(DataLoader(data, batch_size=4))

    assert len(values(feed, 6)) == 6 and feed.random_states()
    assert not any(one is other for one in feed.drawn_from for other in others)


def test_shuffles_are_those_of_an_ordinary_loop() -> None:
    """The order of batches is what the user's loader gives without us."""
    torch.manual_seed(1)
    ordinary = [b[0].tolist() for _ in range(2) for b in SOURCES["shuffled"]()]
    torch.manual_seed(1)
    feed = Feed(SOURCES["shuffled"]())
    assert [feed.next()[0].tolist() for _ in range(10)] == ordinary


def test_skipped_batches_are_not_loaded() -> None:
    """Going to a position in an indexed dataset loads nothing."""
    data = Loaded()
    feed = Feed(DataLoader(data, batch_size=4, shuffle=True))
    values(feed, 4)
    again = Loaded()
    resumed = Feed(DataLoader(again, batch_size=4, shuffle=True))
    resumed.restore(feed.position(), feed.random_states())
    assert again.loads == 0
    resumed.next()
    assert again.loads == 4


def test_an_empty_loader_is_an_error() -> None:
    """A loader without batches ends in one clear error instead of an endless loop."""
    with pytest.raises(ValueError, match="no batch at all: its dataset is empty"):
        Feed([]).next()


def test_a_samplers_numbers_that_do_not_change_are_its_own() -> None:
    """It may be given another size in the next run."""
    feed = Feed(DataLoader(range(20), 4, sampler=Counting()))
    values(feed, 7)
    again = Counting()
    again.size = 12
    resumed = Feed(DataLoader(range(20), 4, sampler=again))
    resumed.restore(feed.position(), feed.random_states())

    assert (again.passes, again.size) == (2, 12)
