"""The directory in which the copies of a forked job meet.

::

    commit-000012.json          the consolidations; a name is given once, so a step is counted once
    weights-000012-3.safetensors   what commit 12 names as its weights
    period-000012/              what belongs to the period after commit 12
      offer-3.safetensors       copy 3's weights and the steps it made
      join-4                    copy 4 has started and wants to be in the next period
      close                     somebody wants the period to end: everybody offers what they have
    alive/3                     touched by copy 3 every second
    plan.json                   what the controller's job tracker last said, if there is one

The truth about a forked job is its newest commit, and nothing else: the controller may be away, its database lost, any
copy killed at any instant. All files appear whole, by rename or link. Needs no PyTorch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from slurm_hadar.errors import ChannelError, CheckpointError
from slurm_hadar.forks import PeriodPlan, Span, count
from slurm_hadar.runtime.checkpoint import files
from slurm_hadar.runtime.launch import own

__all__ = ["PLAN_FILE", "Commit", "Heartbeat", "Offer", "MeetingDirectory", "write_plan"]

FORMAT = 1
PLAN_FILE = "plan.json"
HEARTBEAT_S = 1.0
STALE_S = 10.0
_COMMIT = re.compile(r"commit-(\d{6,18})\.json")
_KEPT = 2  # commits stay
_MOST_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class Commit:
    """One consolidation.

    Parameters
    ----------
    number: 0 for the initial weights. step: steps of the job that are in the weights. total_steps: of the whole job.
    to_do: step indices that are not done. shares: to each member of the period that follows, its indices.
    rates: steps/s of each member, 0 where not known. period_s: how long the period shall last; None = until the shares
        are done. stall_s: what this consolidation is expected to cost a copy.
    offered: steps of each copy that went into it. weights, size, sha256: the file.
    epoch_batches: batches in an epoch of the first copy's loader, None if it cannot tell; seed: of the data's order.
    by: the copy that wrote it. closer: once all steps are done, the copy that goes on to the end of the script.
    """

    number: int
    step: int
    total_steps: int
    to_do: tuple[Span, ...]
    shares: Mapping[int, tuple[Span, ...]]
    rates: Mapping[int, float]
    weights: str
    size: int
    sha256: str
    by: int
    period_s: float | None = None
    stall_s: float | None = None
    offered: Mapping[int, int] | None = None
    epoch_batches: int | None = None
    seed: int = 0
    closer: int | None = None

    @property
    def complete(self) -> bool:
        """Whether no step is left to do."""
        return not self.to_do

    def to_json(self) -> str:
        """The file's text."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """Read it; raises ValueError for anything that is not exactly one."""
        content = json.loads(text)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError("not a commit of this version")
        for name in ("shares", "rates", "offered"):
            if content.get(name) is not None:
                content[name] = {int(copy): value for copy, value in content[name].items()}
        content["to_do"] = _spans(content["to_do"])
        content["shares"] = {copy: _spans(spans) for copy, spans in content["shares"].items()}
        commit = cls(**content)
        left = count(commit.to_do)
        if commit.number < 0 or commit.step < 0 or left + commit.step != commit.total_steps:
            raise ValueError("its numbers contradict each other")
        return commit


@dataclass(frozen=True, slots=True)
class Offer:
    """What a copy made of its share. ``seconds`` of training for it; ``stall_s``: what the last consolidation cost;
    ``stays``: whether it wants a share of the next period."""

    copy: int
    restart: int
    base: int
    spans: tuple[Span, ...]
    seconds: float
    stays: bool
    stall_s: float | None
    path: Path

    @property
    def steps(self) -> int:
        """How many it has made."""
        return count(self.spans)

    @property
    def rate(self) -> float:
        """Steps per second; 0 where no time passed."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    def header(self) -> str:
        """What stands in the file beside the tensors."""
        content = {"format": FORMAT, **asdict(self)}
        del content["path"]
        return json.dumps(content)


class MeetingDirectory:
    """The directory as one copy sees it. Methods raise CheckpointError where the disk fails.

    Parameters
    ----------
    directory: made if need be. copy: this copy's number.
    """

    def __init__(self, directory: Path, copy: int) -> None:
        self.directory = Path(directory)
        self.copy = copy
        self._known: Commit | None = None
        own.make(self.directory)
        own.make(self.directory / "alive")

    # Commits

    def newest(self) -> Commit | None:
        """The newest commit that can be read, None before the first."""
        for number in sorted(self._numbers(), reverse=True):
            if self._known is not None and self._known.number == number:
                return self._known
            commit = self._read(number)
            if commit is not None:
                self._known = commit
                return commit
        return None

    def after(self, number: int) -> Commit | None:
        """The newest commit if it is later than ``number``."""
        newest = self.newest()
        return newest if newest is not None and newest.number > number else None

    def path_of(self, commit: Commit) -> Path:
        """The file of a commit's weights."""
        return self.directory / commit.weights

    def check(self, commit: Commit) -> str | None:
        """What is wrong with the commit's weights, None if they are as they were written. Reads the whole file."""
        try:
            size, digest = self.measure(self.path_of(commit))
        except CheckpointError as error:
            return str(error)
        return None if (size, digest) == (commit.size, commit.sha256) else "its SHA-256 sum differs"

    def reject(self, commit: Commit) -> None:
        """Take a damaged commit out of the way, so that the one before it counts again. Its steps are done anew."""
        self._known = None
        path = self._commit_path(commit.number)
        with contextlib.suppress(OSError):
            path.rename(path.with_suffix(".damaged"))
        for number in (commit.number, commit.number - 1):  # what was offered for it may be the damaged file itself
            with contextlib.suppress(OSError):
                shutil.rmtree(self._period(number))

    def publish(self, commit: Commit) -> bool:
        """Give the commit its name; False if another copy was first. Its weights must be on disk already."""
        path = self._commit_path(commit.number)
        fresh = self.directory / f".commit-{self.copy}-{os.getpid()}"
        try:
            fresh.unlink(missing_ok=True)
            files.write_bytes(fresh, commit.to_json().encode())
            self._set_aside_damaged(commit.number)
            try:
                os.link(fresh, path)
            except FileExistsError:
                return False
            finally:
                fresh.unlink(missing_ok=True)
            files.sync_directory(self.directory)
        except OSError as error:
            raise _failed(path, error) from error
        self._clear(commit.number)
        return True

    def weights_path(self, number: int) -> Path:
        """Where this copy puts the weights of the commit it is about to publish."""
        return self.directory / f"weights-{number:06d}-{self.copy}.safetensors"

    @staticmethod
    def measure(path: Path) -> tuple[int, str]:
        """Size and SHA-256 sum of a file."""
        try:
            entry = files.entry_of(path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        return entry["size"], entry["sha256"]

    def _read(self, number: int) -> Commit | None:
        """None if there is none, or if it was damaged after it was written: an older one counts."""
        try:
            return _read_commit(self._commit_path(number), number)
        except (OSError, ValueError):
            return None

    def _set_aside_damaged(self, number: int) -> None:
        """A name that is given once must not stay with a commit that nobody can read: there would be no next one."""
        path = self._commit_path(number)
        try:
            found = path.stat()
            _read_commit(path, number)
        except ValueError:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == found.st_ino:  # not what another copy has put there meanwhile
                    path.rename(path.with_suffix(".damaged"))
        except OSError:
            return  # there is none, or the disk does not give it now

    def _commit_path(self, number: int) -> Path:
        return self.directory / f"commit-{number:06d}.json"

    def _numbers(self) -> list[int]:
        return [int(m[1]) for name in _names(self.directory) if (m := _COMMIT.fullmatch(name))]

    def _clear(self, newest: int) -> None:
        """Remove what nobody needs any more. Names go first, so that nothing half removed is taken for whole."""
        kept: set[str] = set()
        for number in sorted(self._numbers(), reverse=True):
            commit = self._read(number) if len(kept) < _KEPT else None
            if commit is not None:
                kept.add(commit.weights)
            elif number < newest:
                self._commit_path(number).unlink(missing_ok=True)
        for name in _names(self.directory):
            number = int(m[1]) if (m := re.fullmatch(r"(?:weights|period)-(\d{6,18}).*", name)) else newest
            if number >= newest or name in kept:
                continue
            path = self.directory / name
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    # Periods

    def offer(self, offer: Offer, write: Callable[[Path, str], None]) -> None:
        """Make an offer: ``write(path, header)`` writes the weights to a name that nobody looks at."""
        fresh = offer.path.with_name(f".{offer.path.name}-{os.getpid()}")
        try:
            offer.path.parent.mkdir(exist_ok=True)
            write(fresh, offer.header())
            fresh.replace(offer.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise _failed(offer.path, error) from error

    def offer_path(self, number: int, copy: int) -> Path:
        """Where a copy puts its weights of the period after consolidation ``number``."""
        return self._period(number) / f"offer-{copy}.safetensors"

    def offers(self, commit: Commit) -> dict[int, Offer]:
        """The offers of the period after ``commit`` that fit what was dealt out there."""
        found = {}
        for name in _names(self._period(commit.number)):
            if match := re.fullmatch(r"offer-(\d{1,9})\.safetensors", name):
                offer = _read_offer(self._period(commit.number) / name)
                if offer is not None and offer.copy == int(match[1]) and _fits(offer, commit):
                    found[offer.copy] = offer
        return found

    def drop(self, offer: Offer) -> None:
        """Remove an offer that cannot be read; its steps go back to the rest."""
        with contextlib.suppress(OSError):
            offer.path.unlink()

    def join(self, number: int) -> None:
        """Ask for a share of the next period."""
        self._mark(number, f"join-{self.copy}")

    def joiners(self, number: int) -> set[int]:
        """Copies that have asked for a share, and still live."""
        names = (re.fullmatch(r"join-(\d{1,9})", n) for n in _names(self._period(number)))
        return {copy for m in names if m and self.alive(copy := int(m[1]))}

    def close(self, number: int) -> None:
        """End the period: everybody shall offer what they have."""
        self._mark(number, "close")

    def closing(self, number: int) -> bool:
        """Whether :meth:`close` was called, by whichever copy."""
        return (self._period(number) / "close").exists()

    def _mark(self, number: int, name: str) -> None:
        try:
            self._period(number).mkdir(exist_ok=True)
            (self._period(number) / name).touch()
        except OSError as error:
            raise _failed(self._period(number), error) from error

    def _period(self, number: int) -> Path:
        return self.directory / f"period-{number:06d}"

    # Who lives

    def alive(self, copy: int) -> bool:
        """Whether the copy has given a sign of life lately, by the clock of the file system."""
        try:
            now = (self.directory / "alive" / str(self.copy)).stat().st_mtime
            return now - (self.directory / "alive" / str(copy)).stat().st_mtime < STALE_S
        except OSError:
            return False

    def plan(self) -> PeriodPlan | None:
        """What the job tracker last said, if that is understood."""
        try:
            return PeriodPlan.from_json((self.directory / PLAN_FILE).read_bytes()[:_MOST_BYTES])
        except (OSError, ChannelError):
            return None


class Heartbeat:
    """Touches this copy's sign of life from a thread, so that a copy in a long step does not pass for dead."""

    def __init__(self, meeting: MeetingDirectory) -> None:
        self._path = meeting.directory / "alive" / str(meeting.copy)
        self._stop, self._process = threading.Event(), os.getpid()
        self._beat()
        self._thread = threading.Thread(target=self._run, name="hadar-alive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """This copy lives no more; at once, for those who look. What it has forked says nothing by its end."""
        if os.getpid() != self._process:
            return
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            self._beat()

    def _beat(self) -> None:
        # a rename, not a touch: over NFS it also makes this node see what the others have done to the directory
        fresh = self._path.with_name(f".{self._path.name}-{os.getpid()}")
        with contextlib.suppress(OSError):  # a full disk: the others then judge by the job tracker's word
            fresh.touch()
            fresh.replace(self._path)


def write_plan(directory: Path, plan: PeriodPlan) -> None:
    """Leave the tracker's plan for the copies, unless a later one is there. Raises OSError, CheckpointError."""
    path = directory / PLAN_FILE
    with contextlib.suppress(OSError, ChannelError):
        if PeriodPlan.from_json(path.read_bytes()[:_MOST_BYTES]).serial >= plan.serial:
            return
    own.make(directory)  # the tracker may be faster than the first copy
    fresh = directory / f".{PLAN_FILE}-{os.getpid()}"
    fresh.write_text(plan.to_json())
    fresh.replace(path)


def _read_commit(path: Path, number: int) -> Commit:
    """The commit in this file; raises OSError, or ValueError if it is no commit of this number."""
    text = path.read_text()
    try:
        commit = Commit.from_json(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged") from error
    if commit.number != number:
        raise ValueError(f"{path} has another commit's number")
    return commit


def _read_offer(path: Path) -> Offer | None:
    """An offer by its file's header; None if that is not one of ours."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _MOST_BYTES:
                return None
            content: dict[str, Any] = json.loads(json.loads(file.read(size))["__metadata__"]["hadar"])
        if content.pop("format") != FORMAT:
            return None
        offer = Offer(**{**content, "spans": _spans(content["spans"])}, path=path)
        return offer if _is_time(offer.seconds) and (offer.stall_s is None or _is_time(offer.stall_s)) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast(float, value) < math.inf


def _fits(offer: Offer, commit: Commit) -> bool:
    """Only what was dealt to this copy may be counted."""
    dealt = commit.shares.get(offer.copy, ())
    inside = all(any(a <= start and stop <= b for a, b in dealt) for start, stop in offer.spans)
    apart = all(one[1] <= two[0] for one, two in zip(offer.spans, offer.spans[1:], strict=False))
    return offer.base == commit.number and inside and apart and offer.seconds >= 0


def _spans(pairs: Iterable[Any]) -> tuple[Span, ...]:
    spans = tuple((int(start), int(stop)) for start, stop in pairs)
    if any(not 0 <= start < stop for start, stop in spans):
        raise ValueError("a span must begin before it ends")
    return spans


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names only, many times a second
    except OSError:
        return []


def _failed(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path} cannot be written: {error.strerror or error}")
