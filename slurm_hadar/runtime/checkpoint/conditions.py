"""What a training was made of, besides its state: what makes it another one where a later run has it otherwise.

It is saved with each checkpoint. Nothing is refused for it, since the state fits all the same: it is told of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Conditions"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """classes: of optimizers and schedulers, by what each is called; epoch_batches: of one worker, None where the
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
