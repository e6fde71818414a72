"""What jobs have reported, from the channel or their spool files: checked, de-duplicated, newest first.

Correctness never depends on a report: without any, the controller knows what Slurm says and what it measured before.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import Report, token_fingerprint

__all__ = ["FINISHES_WITHIN_S", "TURNED_AWAY", "JobNews", "ReportBook"]

#: Why something is not taken in: a wrong token, order or form; more messages than a peer may send; what stands in the
#: place of a spool file; a directory that does not answer; more connections than there may be.
TURNED_AWAY = ("message", "rate", "spool", "directory", "connection")
_MOST_VOICES = 4  # of a job whose comment names no token yet
_MOST_UNKNOWN = 256  # voices of jobs that no round has seen yet; each takes some kilobytes at most
FINISHES_WITHIN_S = 120.0  # from the last step to the end of the script: final saves, a short evaluation

_Voice = TypeVar("_Voice", str, tuple[str, str])


@dataclass(slots=True)
class JobNews:
    """The newest word from one incarnation (restart) of a job. Times are of this host's clock.

    * ``heard``: when that word came.
    * ``begun``: it has told of a training.
    * ``first_step``: when it was heard of a step of this run, or of what a server wants, which it tells once it can
      answer; ``midway``: it had a speed when it was first heard of its steps.
    * ``done_at``: when it was first heard that all steps are made.
    * ``began_at``: how far a training that resumes was when it first told of itself; ``weighed``: a round has
      seen that.
    * ``told_steps``: those that it last told of; ``earlier_steps``: those that were made before its count fell back,
      as by another training.
    * ``shared_speeds``: those on a shared GPU, each with its company.
    * ``before``: the last word of the incarnation before, which a restart between two rounds would else hide.
    """

    report: Report
    heard: float
    begun: bool = False
    first_step: float | None = None
    first_steps: int | None = None
    midway: bool = False
    saved_at: float | None = None
    saved_step: int | None = None
    done_at: float | None = None
    ended: bool = False
    began_at: int | None = None
    weighed: bool = False
    told_steps: int = 0
    earlier_steps: int = 0
    live: bool = False
    identity: bytes | None = None
    speeds: list[float] = field(default_factory=list)
    shared_speeds: list[tuple[str, float]] = field(default_factory=list)
    before: JobNews | None = None


class ReportBook:
    """All news by job. Thread-safe: the channel's thread writes, the loop reads.

    Anybody may report for any job, and before the agent does. So a job has several voices, one for each token, until
    its comment, which its owner alone can change, names the token that is right; then that one alone is heard. Whatever
    is kept is bounded, and of voices that are too many the one that has been silent longest gives way: an agent goes on
    speaking, so that nobody can keep it out.

    ``event`` is set when a job ends, reports for the first time or, as a server, wants another number of workers, which
    may bring the next round forward.
    ``listener`` is called with each report that was taken in and is vouched for, on the thread that brought it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, str | None] = {}
        # in the order in which they were heard last; by job and voice where the job is not known yet
        self._voices: dict[str, dict[str, JobNews]] = {}
        self._unknown: dict[tuple[str, str], JobNews] = {}
        self.event = threading.Event()
        self.listener: Callable[[Report], None] | None = None
        self.refused = 0
        #: Reports taken in, and messages of any kind that were dropped; for the metrics.
        self.accepted = self.dropped = 0
        #: What was not taken in, by cause: see :meth:`turn_away`.
        self.turned_away: Counter[str] = Counter(dict.fromkeys(TURNED_AWAY, 0))

    def expect(self, keys: dict[str, str | None]) -> None:
        """Tell which jobs exist, and the fingerprint of the report token that each one's comment names (None = none).

        News of jobs that are gone is forgotten, and so are voices that a comment does not name.
        """
        with self._lock:
            self._keys = keys
            for job, voice in [place for place in self._unknown if place[0] in keys]:
                _keep(self._voices.setdefault(job, {}), voice, self._unknown.pop((job, voice)), _MOST_VOICES)
            believed = ((job, self._believed(job, voices)) for job, voices in self._voices.items() if job in keys)
            self._voices = {job: voices for job, voices in believed if voices}

    def _believed(self, job: str, voices: dict[str, JobNews]) -> dict[str, JobNews]:
        key = self._keys[job]
        return voices if key is None else {voice: news for voice, news in voices.items() if voice == key}

    def ingest(
        self, report: Report, *, identity: bytes | None = None, live: bool = True, at: float | None = None
    ) -> bool:
        """Take in one report, said ``at`` that time, None = now; returns whether the job's comment vouches for it.

        Raises ChannelError for a wrong token, a replay, or an incarnation that is over.
        """
        voice = token_fingerprint(report.token)
        with self._lock:
            key = self._keys.get(report.job)
            if key is not None and voice != key:
                self.refused += 1
                raise ChannelError(f"report for job {report.job} with a wrong token; dropped")
            matters = self._take_in(report, voice, identity, live, time.time() if at is None else at)
            if matters or report.kind == "bye" or report.closes:
                self.event.set()
            self.accepted += 1
        if key is not None and self.listener is not None:
            try:
                self.listener(report)
            except Exception as error:  # whatever a user's figures bring about there, it is that job's matter
                raise ChannelError(f"report of job {report.job} could not be made use of: {error!r}") from error
        return key is not None

    def _take_in(self, report: Report, voice: str, identity: bytes | None, live: bool, at: float) -> bool:
        """Whether this is the first word of a run, or wants another number of workers than the last."""
        known = report.job in self._keys
        news = self._voices.get(report.job, {}).get(voice) if known else self._unknown.get((report.job, voice))
        if news is not None:
            _check_order(report, news.report)
        begins = news is None or report.restart > news.report.restart
        other = news is not None and report.wanted not in (None, news.report.wanted)
        if news is None or begins:
            if news is not None:
                news.before = None
            news = JobNews(report, at, before=news)
        _update(news, report, identity, live, at)
        if known:
            _keep(self._voices.setdefault(report.job, {}), voice, news, _MOST_VOICES)
        else:
            _keep(self._unknown, (report.job, voice), news, _MOST_UNKNOWN)
        return begins or other

    def clock_set(self, by_s: float, within_s: float) -> None:
        """Moments at which something was heard become those of the new time, which has been so for ``within_s``
        seconds at most."""
        with self._lock:
            now = time.time()
            for news in (
                *self._unknown.values(),
                *(one for voices in self._voices.values() for one in voices.values()),
            ):
                for name in ("heard", "first_step", "saved_at", "done_at"):
                    moment = getattr(news, name)
                    if moment is not None and not now - within_s <= moment <= now:
                        setattr(news, name, moment + by_s)

    def reaches(self, job_id: str) -> bool:
        """Whether the job's agent listens on the channel, so that it can be told something."""
        news = self.get(job_id)
        return news is not None and news.identity is not None and news.live

    def drop(self, cause: str = "message") -> None:
        """Count a message that was not acceptable."""
        with self._lock:
            self.dropped += 1
            self.turned_away[cause] += 1

    def turn_away(self, cause: str, times: int = 1) -> None:
        """Count what was not even read, by one of :data:`TURNED_AWAY`."""
        with self._lock:
            self.turned_away[cause] += times

    def get(self, job_id: str) -> JobNews | None:
        """The newest word of the job, if its comment vouches for who said it."""
        with self._lock:
            key = self._keys.get(job_id)
            return None if key is None else self._voices.get(job_id, {}).get(key)

    def saved_since(self, job_id: str, restart: int, moment: float) -> bool:
        """Whether this incarnation has completed a checkpoint that was heard of after ``moment``."""
        news = self.get(job_id)
        return bool(news and news.report.restart == restart and news.saved_at is not None and news.saved_at >= moment)

    def begun(self, job_id: str, restart: int) -> bool:
        """Whether this incarnation has told of a training: one that is to resume may take minutes to load before."""
        news = self.get(job_id)
        return news is not None and news.report.restart == restart and news.begun

    def finishes(self, job_id: str, restart: int) -> bool:
        """Whether this incarnation has made its last step and is about to end by itself. Who goes on for much longer
        does something else, such as a long evaluation."""
        news = self.get(job_id)
        if news is None or news.report.restart != restart or news.done_at is None:
            return False
        return time.time() - news.done_at < FINISHES_WITHIN_S


def _keep(voices: dict[_Voice, JobNews], voice: _Voice, news: JobNews, most: int) -> None:
    """As the one heard last; of more than ``most`` the one that has been silent longest is forgotten."""
    voices.pop(voice, None)
    voices[voice] = news
    if len(voices) > most:
        del voices[next(iter(voices))]


def _check_order(report: Report, last: Report) -> None:
    if report.restart < last.restart:
        raise ChannelError(f"report of run {report.restart} of job {report.job}, which is over; dropped")
    if report.restart == last.restart and report.seq <= last.seq:
        raise ChannelError(f"report {report.seq} of job {report.job} came before; dropped")


def _keep_speed(news: JobNews, steps_per_s: float, beside: str | None) -> None:
    if beside is None:
        news.speeds = [*news.speeds[-31:], steps_per_s]
    else:
        news.shared_speeds = [*news.shared_speeds[-31:], (beside, steps_per_s)]


def _note_start(news: JobNews, report: Report, now: float) -> None:
    if report.steps is not None and news.first_steps is None:
        news.first_steps, news.midway = report.steps, report.steps_per_s is not None
    steps = report.steps is not None and news.first_steps is not None and report.steps > news.first_steps
    if news.first_step is None and (steps or report.wanted is not None):
        news.first_step = now


def _update(news: JobNews, report: Report, identity: bytes | None, live: bool, now: float) -> None:
    news.report, news.heard, news.live = report, now, live
    news.identity = identity or news.identity
    news.begun = news.begun or report.resumable or bool(report.steps)
    if report.resumable and news.began_at is None and report.consolidated_steps is None:
        news.began_at = max(report.steps or 0, report.saved_step or 0)
    if report.steps is not None and report.consolidated_steps is None:
        news.earlier_steps += max(0, news.told_steps - report.steps)
        news.told_steps = report.steps
    _note_start(news, report, now)
    if report.steps_per_s is not None and report.kind in ("report", "hello"):  # others come amid a save, or an end
        _keep_speed(news, report.steps_per_s, report.beside)
    if report.saved_step is not None and report.saved_step != news.saved_step:
        news.saved_step = report.saved_step
    if report.kind == "saved":
        news.saved_at = now
    if report.total_steps is not None:
        # of a job's next training what is saved is still the last one's
        made = report.saved_step if report.steps is None else report.steps
        news.done_at = (news.done_at or now) if (made or 0) >= report.total_steps else None
    if report.kind == "bye":
        news.ended = True
