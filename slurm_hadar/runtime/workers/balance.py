"""Uneven gangs: each worker's share of the global batch follows its speed, and its gradient counts by its samples.

The global batches, and so the mathematics of the training, are those of equal shares; a step takes as long as all
workers together need for it, instead of as long as the slowest one needs for its equal part. Our definition.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from slurm_hadar.joblog import say
from slurm_hadar.runtime.batches.shares import Shares, longest, share_out
from slurm_hadar.runtime.emulation import Pace
from slurm_hadar.runtime.workers.gang import Gang
from slurm_hadar.runtime.workers.stopwatch import Stopwatch

__all__ = ["BY_HAND", "Balance", "is_wanted"]

BY_HAND = "by_hand"
ROUNDS_TO_SETTLE = 8  # rounds after a change before speeds are compared: two to warm up, then some to measure
COMPARE_EVERY_S = 2.0
MOST_TURNS_UNWATCHED = 10_000
WORTH = 0.05  # a change must make the step shorter by this part: less is noise
SURE = 0.2  # what is less than this must be seen twice in a row


def is_wanted(balanced: bool | str | None, global_batch: int | None) -> bool:
    """Whether shares are to follow speed: as the argument says, else as ``mix=`` in the job's comment does.

    Raises ValueError if so and there is nothing to share, or if the argument is none of its values.
    """
    if balanced not in (None, True, False, BY_HAND):
        raise ValueError(f"balanced={balanced!r} must be True, False or {BY_HAND!r}")
    by_comment = balanced is None and os.environ.get("HADAR_MIX") == "balanced"
    if not balanced and not by_comment:
        return False
    if global_batch is None:
        said = "mix=balanced in the job's comment" if by_comment else f"balanced={balanced!r}"
        raise ValueError(f"{said} needs train(..., global_batch=...), of which each worker takes a share")
    return True


class Balance:
    """One worker's part in an uneven gang. Made by all workers together, before the first step.

    Parameters
    ----------
    model: as given to ``train``; its ``DistributedDataParallel`` wrappers get a communication hook that averages over
        samples instead of over workers. by_hand: the training does so itself, by :attr:`weight`.
    most: the largest share a worker can take. ahead: turns for which the loader has shares dealt out already.
    pace: of the private cluster. What a step is to take has passed when this worker's gradient is ready, as on a GPU:
        at the turn's end, as for other trainings, it would come in between two of the things that workers do together.

    Raises ValueError if gradients could not be weighted.
    """

    def __init__(
        self, gang: Gang, shares: Shares, model: Any, by_hand: bool, most: int | None, ahead: int, pace: Pace | None
    ) -> None:
        share_out(shares.total, [1.0] * gang.world, most)
        self._gang, self._shares, self._most, self._by_hand = gang, shares, most, by_hand
        wrappers = list(_wrappers(model))
        self._watch = Stopwatch(_on_gpu(model), pace)
        self._ahead = ahead
        self._now = shares.at(0)
        self._size = shares.total
        self._next_comparison = ROUNDS_TO_SETTLE
        self._compared_at, self._compared_turn = time.monotonic(), 0
        self._pace = pace
        self._computed = self._told = self._paced = self._doubted = False
        if not by_hand:
            self._attach(wrappers)

    # What the training asks

    @property
    def share(self) -> int:
        """This worker's samples in the present step."""
        return self._now[self._gang.rank]

    @property
    def weight(self) -> float:
        """This worker's gradient counts so much in the mean over workers."""
        return self.share * self._gang.world / self._size

    def computed(self) -> None:
        """By hand: this worker's own gradient is ready."""
        self._computed = True
        self._meet()

    # What the loop tells

    def start(self) -> None:
        """The loop begins."""
        self._compared_at = time.monotonic()
        self._watch.run()

    def begin(self, turn: int, size: int | None = None) -> None:
        """A turn begins; its global batch has ``size`` samples, if it is not a whole one."""
        whole = self._shares.at(turn)
        before = [n / self._size for n in self._now]
        self._now, self._size = self._shares.at(turn, size), size or self._shares.total
        if turn and whole != self._shares.at(turn - 1):
            self._watch.reset()
        if self._watch.within_round and before != [n / self._size for n in self._now]:
            self._tell_of_accumulation()

    def end(self) -> None:
        """The turn is over. Raises ValueError if by hand it was not told when its gradient was ready."""
        if self._by_hand and not self._computed:
            raise ValueError(
                f"balanced={BY_HAND!r} needs run.computed() in each turn, when this worker's own gradient is ready"
            )
        self._watch.run()  # nothing is waited for any more, which by hand nobody has told
        self._keep_pace()
        self._computed = self._paced = False
        self._watch.turn(self.share)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done within is no work of this worker's: it waits for others."""
        self._watch.halt()
        yield
        self._watch.run()

    def rebalance(self, turn: int, step: int) -> None:
        """Between two turns, ``turn`` being the next: compare speeds if it is time, and share anew if it pays."""
        if turn < self._next_comparison or self._watch.within_round:
            return
        now = time.monotonic()
        turn_s = (now - self._compared_at) / max(1, turn - self._compared_turn)
        self._compared_at, self._compared_turn = now, turn
        told = self._gang.all_gather((self._watch.take_rate() or 0.0, turn_s, float(self._ahead)))
        rates, turn_s, ahead = [t[0] for t in told], max(t[1] for t in told), int(max(t[2] for t in told))
        turns_to_settle = ROUNDS_TO_SETTLE * self._watch.turns_per_round
        self._next_comparison = turn + turns_to_settle
        if min(rates) <= 0:
            return
        chosen = share_out(self._shares.total, rates, self._most)
        present = self._shares.at(turn)
        before_s, after_s = longest(present, rates), longest(chosen, rates)
        if after_s > before_s * (1 - WORTH):
            self._doubted = False
            self._next_comparison = turn + max(
                turns_to_settle, min(MOST_TURNS_UNWATCHED, int(COMPARE_EVERY_S / max(turn_s, 1e-9)))
            )
            return
        if after_s > before_s * (1 - SURE) and not self._doubted:
            self._doubted = True
            return
        self._doubted = False
        begins = turn + math.ceil(ahead / self._watch.turns_per_round) * self._watch.turns_per_round
        self._shares.change(begins, chosen)
        self._next_comparison = begins + turns_to_settle
        if self._gang.leads:
            say(
                f"from step {step + begins - turn} on {_listed(chosen)} of {self._shares.total} samples per worker, by "
                f"speeds of {_listed([round(r, 1) for r in rates])} samples/s: {after_s:.3g} s instead of "
                f"{before_s:.3g} s a step"
            )

    def _meet(self) -> None:
        self._keep_pace()
        self._watch.meet()

    def _keep_pace(self) -> None:
        if self._pace is not None and not self._paced:
            self._pace.wait(self.weight)
            self._paced = True

    # Gradients

    def _attach(self, wrappers: list[Any]) -> None:
        from torch import distributed as dist

        if not wrappers:
            raise ValueError(
                "a balanced training needs its model wrapped in DistributedDataParallel, whose averaging it weights; "
                f"one that averages by itself takes balanced={BY_HAND!r}, run.weight and run.computed()"
            )
        for wrapper in wrappers:
            if dist.get_world_size(wrapper.process_group) != self._gang.world:
                raise ValueError("a balanced training needs DistributedDataParallel over all workers, not a subgroup")
            if getattr(wrapper, "_comm_hooks", None):
                raise ValueError(
                    "a balanced training registers a communication hook of its own, and the model has one already; "
                    f"take it off, or take balanced={BY_HAND!r}, run.weight and run.computed()"
                )
            # a lambda: DDP refuses annotations that it cannot compare
            wrapper.register_comm_hook(wrapper.process_group, lambda group, bucket: self._average(group, bucket))

    def _average(self, group: Any, bucket: Any) -> Any:
        """The mean over samples: DDP's own would be that over workers."""
        from torch import distributed as dist

        last = bucket.is_last()
        if last:
            self._meet()
        work = dist.all_reduce(bucket.buffer().mul_(self.share / self._size), group=group, async_op=True)

        def averaged(future: Any) -> Any:
            if last:
                self._watch.run()
            return future.value()[0]

        return work.get_future().then(averaged)

    def _tell_of_accumulation(self) -> None:
        told, self._told = self._told, True
        if self._gang.leads and not told:
            say(
                "gradients are being accumulated over batches that are shared differently, and are weighted by the "
                "last one's shares: take a loader with drop_last=True"
            )


def _wrappers(model: Any) -> Iterator[Any]:
    """The DistributedDataParallel wrappers among what was given as model, compiled or not."""
    from torch.nn.parallel import DistributedDataParallel

    for part in _parts(model):
        inner = part
        while not isinstance(inner, DistributedDataParallel) and hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod  # noqa: SLF001 - torch.compile has no other name for it
        if isinstance(inner, DistributedDataParallel):
            yield inner


def _on_gpu(model: Any) -> bool:
    return any(p.is_cuda for part in _parts(model) if hasattr(part, "parameters") for p in part.parameters())


def _parts(model: Any) -> list[Any]:
    if isinstance(model, Mapping):
        return list(model.values())
    return list(model) if isinstance(model, (list, tuple)) else [model]


def _listed(numbers: Any) -> str:
    """All numbers of a small gang; of a large one the range."""
    if len(numbers) <= 16:
        return "+".join(str(n) for n in numbers)
    return f"{min(numbers)} to {max(numbers)}"
