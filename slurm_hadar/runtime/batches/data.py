"""Batches, epoch after epoch, from any position: what makes a resumed training see the data it would have seen.

The order of an epoch is a function of the random states at its beginning. These are kept, so that on resuming the epoch
is begun again from them, as many batches are left out as were used, and then the states of the moment of the save are
put back. Shuffles are exactly those of an ordinary loop over the same loader; nothing about them is changed.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import itertools
import types
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any

from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.fetched import Fetched, base_of
from slurm_hadar.runtime.batches.generators import counts_of_data, generators_in, generators_of, has_spawned, held_by
from slurm_hadar.runtime.batches.kept import Kept
from slurm_hadar.runtime.batches.kept_over import KeptOver
from slurm_hadar.runtime.batches.positioned import length_of, positioned
from slurm_hadar.runtime.batches.shares import Shares

__all__ = ["OVER", "Feed"]

_NEAR, _FEW = 4, 1000  # of what iterators hold
OVER: Any = object()  # instead of a batch: the epoch has no more


class Feed:
    """An endless supply of batches.

    Parameters
    ----------
    source: a ``DataLoader``; any other iterable that can be gone through again; a function, called once per epoch (with
        the epoch's number if it needs an argument, or has one named ``epoch``), that returns an iterable; or None for
        the numbers 0, 1, 2, ...
    batch: batch size to use instead of the loader's own; a source that is no loader of whole batches is taken as it is.
    shares: of an uneven gang, whose worker takes its share of each global batch instead.
    models: whose own generators are kept with the position, too.

    A plain ``DataLoader`` over a dataset with indices leaves out batches without loading them. Others are gone through.
    Of one that Accelerate has prepared the batch that is fetched ahead is fetched again from the random states of then.
    With worker processes that draw random numbers themselves (augmentation), an epoch resumed in its middle sees the
    same samples, but other random numbers in the workers.
    """

    def __init__(
        self,
        source: Any,
        batch: int | None = None,
        shares: Shares | None = None,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        self.epoch = 0
        self.index = 0
        self.turn = 0  # batches given in this run
        Kept.watch()
        self.source = source
        self._generators = generators_of(source)
        known = {id(one) for one in self.drawn_from}
        self._generators += [one for one in generators_in(models or {}) if id(one.of) not in known]
        self._loader = positioned(source, batch, shares)
        self._fetched = None if (base := base_of(source)) is None else Fetched(base, self._generators)
        if self._fetched is not None:
            source.base_dataloader = self._fetched
        self._iterator: Iterator[Any] | None = None
        self._resumed: Callable[[], None] | None = None  # enters the epoch that a run is resumed in
        self._first: list[Any] = []
        self._unused = 0
        self._kept_over = KeptOver()
        self._seed: int | None = None
        self._last_length: int | None = None  # of the last epoch that was gone through to its end
        self._epoch_rng: dict[str, Any] | None = None
        self._epoch_kept = 0
        #: As the script has made it: how many batches an epoch has, and which samples its subsets.
        self.made_of = self.epoch_batches, _chosen(source)

    def next(self, within: bool = False) -> Any:
        """The next batch; a used-up epoch is followed by the next or, where only one is asked for (``within``), by
        OVER. Raises ValueError if an epoch has none."""
        while True:
            self._enter_resumed()
            if self._iterator is None:
                self._begin(skip=0)
            try:
                batch = self._first.pop() if self._first else next(self._iterator)  # type: ignore[arg-type]
            except StopIteration:
                if self.index == 0:
                    raise ValueError(
                        "the loader gives no batch at all: its dataset is empty, or smaller than one (drop_last=True)"
                    ) from None
                self._last_length = self.index
                if within:
                    return OVER
                self.next_epoch()
                continue
            except Exception:  # of the script's data: who goes on all the same has the next one
                self.index += 1
                raise
            self.index, self.turn, self._unused = self.index + 1, self.turn + 1, 0
            return batch

    def next_epoch(self) -> None:
        """What is left of the epoch is left out."""
        self.epoch, self.index, self._iterator = self.epoch + 1, 0, None
        self._first, self._unused, self._resumed = [], 0, None

    @property
    def used_up(self) -> bool:
        """Whether the epoch has no more batches, as its source's length tells or, without one, that of the last."""
        known = self.epoch_batches
        return self.index > 0 and self.index == (self._last_length if known is None else known)

    def give_back(self, batch: Any) -> None:
        """The last batch was not used: it is the next one, too. A run that is resumed from here makes it anew, of the
        same samples."""
        self.index, self.turn = self.index - 1, self.turn - 1
        self._first.append(batch)

    def pass_over(self) -> None:
        """The last batch was used, and nothing came of it that is saved: this run goes on behind it, and one that is
        resumed from here begins with it."""
        self._unused = 1

    @property
    def global_size(self) -> int | None:
        """Samples of the last batch over all workers; None if only the source knows."""
        shared = self._loader.shared if self._loader is not None else None
        return shared.size(self.index - 1) if shared is not None else None

    @property
    def ahead(self) -> int:
        """Batches beyond the last one that may have been drawn already."""
        return self._loader.ahead if self._loader is not None else 0

    @property
    def epoch_batches(self) -> int | None:
        """How many batches an epoch has; None where only going through it would tell."""
        source = self._loader if self._loader is not None else self.source
        return None if callable(source) else length_of(source)

    @property
    def goes_on(self) -> bool:
        """Whether it cannot be entered in the middle: :meth:`seek` does nothing."""
        return self.source is not None and self.epoch_batches is None

    @property
    def lists(self) -> list[list[Any]]:
        """Of its data and samplers: what changes in them is saved."""
        held = (getattr(one, "indices", one) for one in self.drawn_from)
        return [one for one in held if isinstance(one, list)]

    @property
    def drawn_from(self) -> list[Any]:
        """What the source draws from, and is kept with the position."""
        return [generator.of for generator in self._generators]

    @property
    def counts(self) -> dict[str, Any]:
        """What its data count and nobody keeps, by what it is: a state may be asked for."""
        return counts_of_data(self.source)

    def is_over(self, data: Any) -> bool:
        """Whether its batches come from this data set, as far as can be told: a function makes whatever it likes, and
        ``itertools.cycle`` gives what it has seen once again and again."""
        if callable(self.source) or any(one is data for one in held_by(self.source)):
            return True
        return isinstance(self.source, itertools.cycle) and _reaches(self.source, data)

    def goes_through(self, data: Any) -> bool:
        """Whether it is a generator that goes through a loader of this data set by itself."""
        return isinstance(self.source, types.GeneratorType) and _reaches(self.source, data)

    @property
    def keeps_iterators(self) -> bool:
        """Whether it goes on with its own iterators of loaders where an epoch before has left them."""
        return self._kept_over.found()

    @property
    def kept_stream(self) -> bool:
        """Whether it is in a later epoch of a stream whose workers are kept: they go on from what they were."""
        from torch.utils.data import DataLoader, IterableDataset

        one = self.source
        if not (self.epoch and isinstance(one, DataLoader) and isinstance(one.dataset, IterableDataset)):
            return False
        return bool(one.num_workers and one.persistent_workers)

    @property
    def batch_size(self) -> int | None:
        """The source's own: samples of one worker. None where it tells none."""
        for part in (getattr(self.source, "batch_sampler", None), self.source):
            if type(size := getattr(part, "batch_size", None)) is int:
                return size
        return None

    def fix_order(self, seed: int) -> None:
        """From now on the order of each epoch is a function of ``seed`` and its number alone.

        A source whose length is not known keeps its own order.
        """
        self._seed, self._iterator, self._first = seed, None, []

    def seek(self, step: int, epoch_batches: int | None) -> None:
        """Go to the batch of ``step``, counted from the first of epoch 0; after :meth:`fix_order`.

        A source whose length is not known just goes on.
        """
        if self.source is None:
            self.index, self._iterator = step, None
            return
        own = self.epoch_batches
        if own is None or not epoch_batches:
            return
        epoch, index = divmod(step, epoch_batches)
        index %= max(1, own)  # a gang of another size may see a batch less in an epoch
        if self._iterator is None or (epoch, index) != (self.epoch, self.index):
            self.epoch = epoch
            self._begin(skip=index)
            self.index = index

    def position(self) -> dict[str, int]:
        """Epoch, batches of it that were used and, where only that tells how many it has, those of the last one."""
        length = {} if self._last_length is None or self.epoch_batches is not None else {"length": self._last_length}
        return {"epoch": self.epoch, "index": self.index - self._unused, **length}

    def random_states(self) -> dict[str, Any]:
        """This rank's random states: now, and at the beginning of the epoch, None if that is still to come; how many
        loaders of the script's own keep workers, which have drawn from them; those before the batch that was fetched
        ahead; and where it is, which may be elsewhere where its data are."""
        self._enter_resumed()
        kept = {"now": Kept.count(), "epoch": self._epoch_kept}
        epoch = self._epoch_rng if self._iterator is not None else None
        states = {"now": rng.capture(self._generators), "epoch": epoch, "kept": kept}
        ahead = self._fetched.before if self._fetched is not None and self._iterator is not None else None
        return {**states, "ahead": ahead, "position": self.position()}

    def restore(self, position: dict[str, int], states: dict[str, Any] | None) -> None:
        """Go to ``position``. Without ``states`` (a rank that did not exist) the present random states are used.

        Its epoch is entered when a batch is asked for: loader workers and functions of the script are then to see what
        it sets at the epoch's beginning, as they did before.
        """
        self.epoch, self.index, self._iterator = position["epoch"], position["index"], None
        self._last_length = position.get("length")
        known = states or {}
        if self._loader is not None and self.epoch:
            self._loader.warm_up()
        if self.source is not None and (self.index or known.get("epoch") is not None):
            self._resumed = functools.partial(self._enter, position, known)
        if states is not None:
            if any(map(has_spawned, states["now"]["generators"])):
                self._enter_resumed()
            rng.restore(states["now"], self._generators)
        Kept.resume(known.get("kept", {"now": 0})["now"])

    def _enter_resumed(self) -> None:
        if self._resumed is not None:
            self._resumed()
            self._resumed = None

    def _enter(self, position: dict[str, int], states: dict[str, Any]) -> None:
        """Begin the epoch as it was begun, and leave out what was used of it."""
        now, kept = rng.capture(self._generators), Kept.count()
        if (begun := states.get("epoch")) is not None:
            Kept.resume(states.get("kept", {"epoch": 0})["epoch"])
            rng.restore(begun, self._generators)
        if self._fetched is not None and position == states.get("position"):
            self._fetched.again(states.get("ahead"))
        self._begin(skip=position["index"])
        if not position["index"]:
            self._first = self._drawn_first()
        if states:
            rng.restore(now, self._generators)
            Kept.resume(kept)

    def _begin(self, skip: int) -> None:
        if self.source is not None and self._loader is None:
            self._kept_over.begin_epoch()
        self._epoch_rng, self._epoch_kept = rng.capture(self._generators), Kept.count()
        if self._seed is None or self.epoch_batches is None:
            self._iterator = self._batches(skip)
            return
        rng.seed(self._seed, self.epoch, self._generators)
        self._iterator = self._batches(skip)
        self._first = self._drawn_first()
        rng.restore(self._epoch_rng, self._generators)

    def _drawn_first(self) -> list[Any]:
        """The epoch's first batch: only when that is asked for do samplers and streams draw its order."""
        assert self._iterator is not None
        return list(islice(self._iterator, 1))

    def _batches(self, skip: int) -> Iterator[Any]:
        if self.source is None:
            return count(self.index)
        if self._loader is not None:
            _set_epoch(self.source, self.epoch)
            return self._loader.begin(skip, self.turn - skip)
        batches = iter(self._open_source())
        for _ in islice(batches, skip):
            pass
        return batches

    def _open_source(self) -> Iterable[Any]:
        if not callable(self.source):
            _set_epoch(self.source, self.epoch)
            source: Iterable[Any] = self.source
        else:
            source = _called(self.source, self.epoch)
        return source


def _reaches(source: Any, data: Any) -> bool:
    """Whether an iterator holds it, which Python alone knows."""
    seen, level = {id(source)}, [source]
    for _ in range(_NEAR):
        level = [one for one in gc.get_referents(*level) if not isinstance(one, (type, types.ModuleType, dict))][:_FEW]
        level += [one for held in map(vars, filter(_has_own, level)) for one in held.values()]
        level = [one for one in level if id(one) not in seen and not seen.add(id(one))]  # type: ignore[func-returns-value]
        if any(one is data for one in level):
            return True
    return False


def _has_own(one: Any) -> bool:
    return isinstance(getattr(one, "__dict__", None), dict)


def _chosen(source: Any) -> str | None:
    """What tells the samples of its subsets, as of a random split, from others; None where it has none."""
    from torch.utils.data import Subset

    subsets = [one for one in held_by(source) if isinstance(one, Subset)]
    chosen = b"".join(_bytes_of(one.indices) for one in subsets)
    return hashlib.blake2b(chosen, digest_size=8).hexdigest() if subsets else None


def _bytes_of(indices: Iterable[Any]) -> bytes:
    """Of whole numbers, or of texts: what a data set is asked for may be anything."""
    try:
        return array("q", map(int, indices)).tobytes()
    except (TypeError, ValueError, OverflowError):
        return repr([one for one in indices if isinstance(one, str)]).encode()


def _called(source: Callable[..., Iterable[Any]], epoch: int) -> Iterable[Any]:
    """A function's batches of an epoch; its number does not take the place of an argument that is something else and
    has a default."""
    parameters = inspect.signature(source).parameters
    if "epoch" in parameters and parameters["epoch"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return source(epoch=epoch)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = any(p.kind in kinds and p.default is p.empty for p in parameters.values())
    return source(epoch) if needed else source()


def _set_epoch(source: Any, epoch: int) -> None:
    """Tell samplers that shuffle by epoch (``DistributedSampler``), as an ordinary loop over epochs would."""
    batches = getattr(source, "batch_sampler", None)
    for part in (getattr(source, "sampler", None), batches, getattr(batches, "sampler", None), source):
        if part is not None and hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
            return
