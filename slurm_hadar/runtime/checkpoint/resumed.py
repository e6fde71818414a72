"""What a checkpoint is to the run that goes on from it: what the training was made of, besides its state, and where it
was in its data.

Nothing is refused for what a later run has otherwise, since the state fits all the same: it is told of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slurm_hadar.joblog import say
from slurm_hadar.runtime.checkpoint.listing import Checkpoint
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["ADVICE", "Conditions", "Resumed"]

#: What helps where a checkpoint is not meant to be gone on from, as the end of a sentence.
ADVICE = "remove it, or tell trainings apart by train(..., name=...)"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Of a training, saved with each checkpoint: what makes it another one where a later run has it otherwise.

    classes: of optimizers and schedulers, by what each is called; epoch_batches: of one worker, None where the
    loader does not tell; chosen: a digest of the subsets that the data are, None if they are none; drawn: digests of
    the generators that the script drew from before the first run's training began, by name."""

    classes: Mapping[str, str]
    epoch_batches: int | None
    chosen: str | None
    drawn: Mapping[str, str]

    def saved(self) -> dict[str, Any]:
        """As it stands in a checkpoint."""
        return asdict(self)

    def changes(self, saved: Mapping[str, Any], within_epoch: bool) -> Iterator[str]:
        """What the script has become, a clause each. within_epoch: as many workers go on in one that had begun."""
        for which, before in saved.get("classes", {}).items():
            if (now := self.classes.get(which, before)) != before:
                yield f"{which} has become {now}, which goes on from the state of {before}"
        before = saved.get("epoch_batches")
        if within_epoch and before and self.epoch_batches and before != self.epoch_batches:
            yield (
                f"an epoch of {before} batches has become one of {self.epoch_batches}: what is left of the one that "
                "had begun is not what the training would have seen"
            )

    def chances(self, saved: Mapping[str, Any]) -> Iterator[str]:
        """What chance has made otherwise than in the runs before, a sentence each."""
        if (before := saved.get("chosen")) and self.chosen not in (None, before):
            yield (
                "the data set is another subset than in the runs before, as of a random split that is not seeded: "
                "samples that were held out may be trained on now"
            )
        for name, before in saved.get("drawn", {}).items():
            if self.drawn.get(name, before) != before:
                yield (
                    f"other numbers were drawn from {name} before train() than in the runs before: if data were split "
                    "or shuffled by them, they are so otherwise now (if only a library drew some when it was imported, "
                    "nothing is lost)"
                )


@dataclass(frozen=True, slots=True)
class Resumed:
    """``content``: of the checkpoint, as the store has loaded it. ``gang``: the workers that go on."""

    found: Checkpoint
    content: Mapping[str, Any]
    gang: Gang

    @property
    def saved(self) -> dict[str, Any]:
        """What rank 0 has saved for all."""
        state: dict[str, Any] = self.content["state"]
        return state

    @property
    def mine(self) -> dict[str, Any] | None:
        """What this rank has saved of its own; None where there was no such rank."""
        ranks = self.content["ranks"]
        return ranks[self.gang.rank] if self.gang.rank < len(ranks) else None

    @property
    def _workers(self) -> int:
        """That there were."""
        return len(self.content["ranks"])

    def tell(self, here: Conditions) -> None:
        """Say what is not as it was. ``here``: what the training is made of now."""
        saved, name = self.saved, self.found.name
        within_epoch = self._workers == self.gang.world and saved["position"]["index"] > 0
        for change in here.changes(saved, within_epoch):
            say(f"WARNING: since {name} was saved, {change}. If that is not meant: {ADVICE}")
        if (own := self.content.get("own")) and self._workers != self.gang.world:
            say(
                f"WARNING: {len(own) + 1} of {self._workers} workers had states of their own when {name} was saved "
                f"(weights, buffers or random numbers), and {self.gang.world} go on, all with those of the first"
            )
        for chance in here.chances(saved):
            say(f"WARNING: {chance}. Seed it after the imports, before it is drawn from, the same in every run")

    def position(self, samples_per_step: int | None, kept_alike: bool) -> dict[str, int]:
        """Where this worker goes on in its data. ``samples_per_step``: as far as is known now; ``kept_alike``: they
        are to be the same with any number of workers."""
        saved, mine = self.saved, self.mine
        others = self._workers != self.gang.world
        position = dict(saved["position"] if others or mine is None else mine.get("position", saved["position"]))
        then = saved.get("samples_per_step")
        if then and samples_per_step and (others or kept_alike):
            position["index"] = position["index"] * then // samples_per_step
        elif others:  # as many samples were used, by another number of workers
            position["index"] = position["index"] * self._workers // self.gang.world
            if position["index"] and self.gang.leads:
                say(
                    f"WARNING: {self.gang.world} workers go on in the epoch of {self._workers}, and the loader does "
                    "not tell how many samples a batch has: those of one worker are taken to be as many as before"
                )
        return position
