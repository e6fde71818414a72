"""Which other jobs have turns on the GPU that a task shares, as its broker says; and giving way to them."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from slurm_hadar.errors import ChannelError

__all__ = ["Company", "GivesWay"]

LOOK_S = 2.0
_LEASE_S = 10.0
_EQUAL = 0.5
_FIRST = 5  # turns take longer: libraries load, and code is compiled
_LABEL = re.compile(r"job ([1-9]\d{0,17}(?:_\d{1,9})?)(?: |$)")


class GivesWay:
    """What the controller has told the job to leave its company of the GPU's turns, passed on to the broker.

    The broker is told for :data:`_LEASE_S` again and again, since another one may follow it: if this process ends, or
    the controller says nothing more until the time is over that it has named, the turns are equal again.
    """

    def __init__(self, broker: str | None, job: str) -> None:
        self._path = Path(broker) if broker else None
        self._job = job
        self._share = _EQUAL
        self._until = self._told_at = 0.0

    def obey(self, share: float, for_s: float) -> bool:
        """From now on this share of the turns, 0 to a half, for so many seconds; whether it is another one."""
        before, self._share, self._until = self._share, share, time.monotonic() + for_s
        self._tell()
        return share != before

    def keep_up(self) -> bool:
        """To be called about once a second; whether the turns are equal again now."""
        now = time.monotonic()
        over = self._share < _EQUAL and now >= self._until
        if over:
            self._share = _EQUAL
        if over or (self._share < _EQUAL and now - self._told_at >= LOOK_S):
            self._tell()
        return over

    def _tell(self) -> None:
        if self._path is None:
            return
        from slurm_hadar.sharing.broker.queries import give_way  # what tasks with GPUs of their own need not load

        self._told_at = time.monotonic()
        with contextlib.suppress(ChannelError):  # it is changing hands: next time
            give_way(self._path, self._job, self._share, max(0.0, min(_LEASE_S, self._until - self._told_at)))


class _Had(NamedTuple):
    """What a session of the job had by a moment: turns, and seconds in them and between them, without those of waiting
    (None: not told)."""

    session: str
    turns: int
    used_s: float
    away_s: float | None

    @classmethod
    def of(cls, row: dict[str, Any]) -> _Had:
        """By a row of the broker's."""
        used_s, duty = float(row["used_s"]), row.get("duty")
        return cls(str(row["session"]), int(row["turns"]), used_s, used_s / float(duty) - used_s if duty else None)

    def goes_on(self, before: _Had) -> bool:
        """Whether it is that session, later, and at the same broker."""
        return self.session == before.session and self.turns >= before.turns and self.used_s >= before.used_s


class Company:
    """Looked at every :data:`LOOK_S`: who has had a turn since the last look counts, so that one who loads data, or
    waits for memory, does not. ``broker`` is its socket; None = the task has a GPU of its own."""

    def __init__(self, broker: str | None, job: str) -> None:
        self._path = Path(broker) if broker else None
        self._job = job
        self._turns: dict[str, int] | None = None
        self._looked_at = 0.0
        self._first: _Had | None = None
        #: Ids of the other jobs, joined by ``+`` ("" = none); None where that is not known.
        self.now: str | None = None
        #: What the broker knows of this job: ``persistent_bytes``, ``ephemeral_bytes``, ``iter_s`` and ``duty``.
        self.needs: dict[str, Any] = {}

    def changed(self) -> bool | None:
        """Look, if it is time; whether the company is another one now, None = it was not time to look. Who has a GPU
        of its own need not look."""
        if self._path is None:
            return False
        if time.monotonic() - self._looked_at < LOOK_S:
            return None
        before, self.now = self.now, self._seen(self._path)
        self._looked_at = time.monotonic()
        return self.now != before

    def _is_mine(self, label: str) -> bool:
        match = _LABEL.match(label)
        return match is not None and match[1] == self._job

    def _note_needs(self, mine: list[dict[str, Any]]) -> None:
        """Of the job's one session, since its first turns; of several nobody knows what the job takes in all."""
        if len(mine) != 1 or int(mine[0]["turns"]) < _FIRST or "used_s" not in mine[0]:
            return
        (one,) = mine
        now, first = _Had.of(one), self._first
        if first is None or not now.goes_on(first):
            first = self._first = now
        turns, used_s = now.turns - first.turns, now.used_s - first.used_s
        if not turns:
            return
        memory = one.get("measured") or one
        sizes = {name: int(memory.get(name, 0)) for name in ("persistent_bytes", "ephemeral_bytes")}
        known = sizes if any(sizes.values()) else {}
        self.needs = {**known, "iter_s": used_s / turns}
        if now.away_s is not None and first.away_s is not None and used_s > 0:
            self.needs["duty"] = used_s / (used_s + max(0.0, now.away_s - first.away_s))

    def _seen(self, path: Path) -> str | None:
        from slurm_hadar.sharing.broker.queries import status_of  # what tasks with GPUs of their own need not load

        before, self._turns = self._turns, None
        try:
            sessions = status_of(path)["sessions"]
            self._turns = {str(one["session"]): int(one["turns"]) for one in sessions}
            labels = {str(one["session"]): str(one["label"]) for one in sessions}
            self._note_needs([one for one in sessions if self._is_mine(str(one["label"]))])
        except (ChannelError, KeyError, TypeError, ValueError):  # it is changing hands, or is no broker of ours
            return None
        if before is None:
            return None
        active = [name for name, turns in self._turns.items() if turns > before.get(name, 0)]
        found = [_LABEL.match(labels[name]) for name in active]
        jobs = {match[1] for match in found if match}
        return None if None in found else "+".join(sorted(jobs - {self._job}))
