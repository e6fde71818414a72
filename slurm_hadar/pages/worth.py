"""What Hadar has gained, or would have: the sections of a journal's page that answer it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_hadar.controller.answers.savings import headline
from slurm_hadar.controller.journal.gains import saved, shadow
from slurm_hadar.pages import html as page
from slurm_hadar.pages.comparison import results_in_short

__all__ = ["worth_by_accounting", "worth_by_rounds"]

_HOW = (
    "A job's speed where it runs is held against its average speed on all GPUs of the cluster that it accepts, each "
    "type as often as there are GPUs of it: what a scheduler that is blind to types would give it. Jobs on slower GPUs "
    "than the average count as a loss, jobs of whose speeds nothing is known not at all."
)
_NOT_KNOWN = (
    "The rounds say nothing about it yet: this needs rounds that look at steered jobs whose speeds are known. Jobs are "
    "steered if their comment begins with hadar:, and speeds are known of models that it names, or once measured."
)
_ASK = (
    "For jobs that were not steered: hadar replay --out FOLDER, then this page again with --replay FOLDER/replay.json."
)


def worth_by_rounds(gains: Iterable[Mapping[str, Any]]) -> str:
    """The section on the live rounds, of a journal's ``gains()``: what decisions that were carried out gained, and what
    those of modes observe and advise would have."""
    entries = list(gains)
    done, looked = saved(entries), shadow(entries)
    parts = []
    if done is not None:
        parts.append(
            page.paragraph(
                f"Mode act, {done['rounds']} rounds since {page.when(done['since'])}: {headline(done)}; for "
                f"{100 * done['measured_share']:.0f} % of the GPU-hours the speed was measured here."
            )
        )
    if looked is not None:
        parts.append(
            page.paragraph(
                f"Modes observe and advise, {looked['rounds']} rounds since {page.when(looked['since'])}: had the "
                f"decisions been carried out, the GPUs would have done {100 * looked['share']:+.1f} % work in each "
                "round, jobs that they would have started or stopped included. Each round by itself; what moves cost "
                "is not taken off."
            )
        )
    parts.append(page.paragraph(_HOW if parts else _NOT_KNOWN, dim=True))
    return page.section("What it gained, or would have", *parts)


def worth_by_accounting(document: Mapping[str, Any] | None) -> str:
    """The section on the site's own jobs. ``document``: that of ``hadar replay --out`` (replay.json), None = none was
    given, which says how to get one."""
    title = "What the site's accounting says"
    if document is None:
        return page.section(title, page.paragraph(_ASK, dim=True))
    assumed = page.details("What was assumed", page.listing(document["assumptions"]))
    return page.section(title, *results_in_short(document), assumed)
