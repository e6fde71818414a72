"""What agents left in job directories while the channel was away."""

from __future__ import annotations

import pwd
import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from slurm_hadar.controller.agents.complaints import Complaints
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.agents.user_files import Found, Tail, UserFiles
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import SPOOL_FILE, decode_report, job_homes

__all__ = ["SpoolReader"]

_MOST_BYTES = 128 * 1024  # of one file at a time: each report says all that is known, so that the last ones suffice
_MOST_LINES = 512


class SpoolReader:
    """Reads spool files, each from where it stopped, by ``files``. They are users': whatever is there costs the job its
    reports."""

    def __init__(self, book: ReportBook, files: UserFiles | None = None) -> None:
        self._book = book
        self._files = files or UserFiles()
        self._offsets: dict[str, int] = {}
        self._complaints = Complaints("spool file")

    def read(self, job_id: str, work_dir: str, user: str) -> int:
        """:meth:`read_all` for one job."""
        return self.read_all([(job_id, work_dir, user)])

    def read_all(self, jobs: Iterable[tuple[str, str, str]]) -> int:
        """Take in the new lines of these jobs' spool files, where there are any; returns how many were good.

        Each job is its id, its working directory and its user. Never raises.
        """
        wanted = [
            (job_id, _tail(work_dir, job_id, user, self._offsets.get(job_id, 0)))
            for job_id, work_dir, user in jobs
            if work_dir
        ]
        misses = self._files.misses
        found = self._files.tails([tail for _, tail in wanted])
        self._look_beside(wanted, found)
        self._book.turn_away("directory", self._files.misses - misses)
        return sum(self._take(job_id, tail, one) for (job_id, tail), one in zip(wanted, found, strict=True))

    def _look_beside(self, wanted: list[tuple[str, Tail]], found: list[Found]) -> None:
        """Where another user's directory has the usual name, a job's is under a name of its owner's own."""
        again = [i for i, one in enumerate(found) if one.fault and _beside(wanted[i][1]) is not None]
        beside = [tail for i in again if (tail := _beside(wanted[i][1])) is not None]
        for i, tail, one in zip(again, beside, self._files.tails(beside) if beside else (), strict=True):
            if not one.fault:
                wanted[i], found[i] = (wanted[i][0], tail), one

    def forget(self, but: Collection[str]) -> None:
        """Keep what is known of these jobs' files only."""
        self._offsets = {job_id: offset for job_id, offset in self._offsets.items() if job_id in but}

    def _take(self, job_id: str, tail: Tail, found: Found) -> int:
        if found.fault:
            if not found.absent:
                self._book.turn_away("spool")
                self._complaints.say(f"spool file of job {job_id} in {tail.folder}: {found.fault}", job_id)
            return 0
        amid = found.begin not in (0, tail.offset)  # a line, of which the rest is passed over
        start = found.data.find(b"\n") + 1 if amid else 0
        whole, newline, _ = found.data[start:].rpartition(b"\n")
        self._offsets[job_id] = found.begin + start + len(whole) + len(newline)
        return sum(self._line(line, job_id, not tail.offset) for line in whole.splitlines()[-_MOST_LINES:])

    def _line(self, line: bytes, job_id: str, old: bool) -> bool:
        """``old``: it may have stood there for long, so that its own time says when it was said."""
        try:
            report = decode_report(line)
            if report.job != job_id:
                raise ChannelError(f"spool of job {job_id} speaks of job {report.job}")
            self._book.ingest(report, live=False, at=min(report.time, time.time()) if old else None)
        except ChannelError as error:
            self._book.drop()
            self._complaints.say(f"spool file of job {job_id}: {error}", job_id)
            return False
        return True


def _tail(work_dir: str, job_id: str, user: str, offset: int) -> Tail:
    return Tail(work_dir, (job_homes(0)[0], job_id, SPOOL_FILE), user, offset, _MOST_BYTES)


def _beside(tail: Tail) -> Tail | None:
    """The same file under its owner's own name; None if nobody knows the owner."""
    try:
        uid = int(tail.user) if tail.user.isdecimal() else pwd.getpwnam(tail.user).pw_uid
    except KeyError:
        return None
    return replace(tail, names=(job_homes(uid)[1], *tail.names[1:]))
