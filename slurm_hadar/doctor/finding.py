"""What a check says, and how a check is written down.

A check is a function that gets what was found out and gives an :class:`Answer`; it asks nothing itself, so that every
verdict can be tried without a Slurm.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

__all__ = ["PAGE", "Answer", "Check", "Finding", "Verdict", "cannot_tell", "note", "ok", "problem", "warning"]

PAGE = "docs/admin.md"
_Subject = TypeVar("_Subject")


class Verdict(enum.StrEnum):
    """How bad it is. A problem keeps the controller from doing its work; a warning costs something; a note is worth
    knowing; unknown could not be found out."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    UNKNOWN = "unknown"
    OK = "ok"


class Answer(NamedTuple):
    """A verdict, what was found, and the command or line of a file that changes it (empty where nothing is to do).

    ``meanwhile``: that is an administrator's to do, and this is what a plain user can do until then ("" = nothing);
    None: as the check says.
    """

    verdict: Verdict
    found: str
    fix: str = ""
    meanwhile: str | None = None


def ok(found: str) -> Answer:
    """For what is as it should be."""
    return Answer(Verdict.OK, found)


def note(found: str, fix: str = "") -> Answer:
    """For what is worth knowing; ``fix``: what changes it."""
    return Answer(Verdict.NOTE, found, fix)


def warning(found: str, fix: str) -> Answer:
    """For what costs something, with what changes it."""
    return Answer(Verdict.WARNING, found, fix)


def problem(found: str, fix: str) -> Answer:
    """For what keeps the controller from its work, with what changes it."""
    return Answer(Verdict.PROBLEM, found, fix)


def cannot_tell(why: str, fix: str = "") -> Answer:
    """For what could not be found out, and why: never called good."""
    return Answer(Verdict.UNKNOWN, f"cannot tell: {why}", fix)


@dataclass(frozen=True, slots=True)
class Check(Generic[_Subject]):
    """``name`` is its word in JSON and in the page's anchor; ``why`` one sentence on why it matters; ``meanwhile`` as
    in :class:`Answer`, None where anybody can do what its answers say."""

    name: str
    why: str
    judge: Callable[[_Subject], Answer]
    meanwhile: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. ``fix`` is what this user can do; ``ask`` is for the administrator, where this user
    is none."""

    check: str
    verdict: Verdict
    found: str
    why: str
    fix: str
    ask: str = ""

    @classmethod
    def of(cls, check: Check[_Subject], answer: Answer, plain: bool) -> Finding:
        """``plain``: this user may change neither Slurm nor others' jobs."""
        meanwhile = answer.meanwhile if answer.meanwhile is not None else check.meanwhile
        fix, ask = (meanwhile, answer.fix) if plain and meanwhile is not None else (answer.fix, "")
        return cls(check.name, answer.verdict, answer.found, check.why, fix if answer.fix else "", ask)

    @property
    def link(self) -> str:
        """Where the documentation says more."""
        return f"{PAGE}#doctor-{self.check}"
