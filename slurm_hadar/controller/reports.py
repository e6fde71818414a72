"""What jobs have reported, from the channel or their spool files: checked, de-duplicated, newest first.

Correctness never depends on a report: without any, the controller knows what Slurm says and what it measured before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import Report, token_fingerprint

__all__ = ["FINISHES_WITHIN_S", "JobNews", "ReportBook"]

FINISHES_WITHIN_S = 120.0  # from the last step to the end of the script: final saves, a short evaluation


@dataclass(slots=True)
class JobNews:
    """The newest word from one incarnation (restart) of a job. ``heard`` is this host's clock, as is ``done_at``, when
    it was first heard that all steps are made; ``before`` is the last word of the incarnation before, which a restart
    between two rounds would else hide."""

    report: Report
    heard: float
    hello: float | None = None
    first_step: float | None = None
    first_steps: int | None = None
    saved_at: float | None = None
    saved_step: int | None = None
    done_at: float | None = None
    ended: bool = False
    live: bool = False
    identity: bytes | None = None
    speeds: list[float] = field(default_factory=list)
    before: JobNews | None = None


class ReportBook:
    """All news by job. Thread-safe: the channel's thread writes, the loop reads.

    ``event`` is set when a job ends or reports for the first time, which may bring the next round forward.
    ``listener`` is called with each report that was taken in, on the thread that brought it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news: dict[str, JobNews] = {}
        self._keys: dict[str, str | None] = {}
        self._tokens: dict[str, str] = {}
        self.event = threading.Event()
        self.listener: Callable[[Report], None] | None = None
        self.refused = 0
        #: Reports taken in, and messages of any kind that were dropped; for the metrics.
        self.accepted = self.dropped = 0

    def expect(self, keys: dict[str, str | None]) -> None:
        """Tell which jobs exist, and the fingerprint of the report token that each one's comment names (None = none).

        News of jobs that are gone is forgotten, and so are those that were kept for a job whose comment has named
        another token since.
        """
        with self._lock:
            self._keys = dict(keys)
            self._tokens = {job: token for job, token in self._tokens.items() if self._believes(job, token)}
            self._news = {job: news for job, news in self._news.items() if job in self._tokens}

    def _believes(self, job: str, token: str) -> bool:
        """Whether the job is there, and its comment does not name another token."""
        key = self._keys.get(job, "")
        return key is None or (key != "" and token_fingerprint(token) == key)

    def _vouched(self, job: str) -> bool:
        """Whether the job's comment, which its owner alone can change, names the token of its news. Reports may come
        before that was read, and anybody may send them: until then they are kept, and nobody is told."""
        key, token = self._keys.get(job), self._tokens.get(job)
        return key is not None and token is not None and token_fingerprint(token) == key

    def ingest(self, report: Report, *, identity: bytes | None = None, live: bool = True) -> None:
        """Take in one report. Raises ChannelError for a wrong token, a replay, or an incarnation that is over."""
        with self._lock:
            self._check_token(report)
            news = self._news.get(report.job)
            if news is not None:
                _check_order(report, news.report)
            if news is None or report.restart > news.report.restart:
                if news is not None:
                    news.before = None
                news = JobNews(report, time.time(), before=news)
                self._news[report.job] = news
                self.event.set()
            _update(news, report, identity, live)
            if report.kind == "bye" or report.closes:
                self.event.set()
            self.accepted += 1
            vouched = self._vouched(report.job)
        if vouched and self.listener is not None:
            self.listener(report)

    def drop(self) -> None:
        """Count a message that was not acceptable."""
        with self._lock:
            self.dropped += 1

    def _check_token(self, report: Report) -> None:
        key = self._keys.get(report.job)
        if key is not None and token_fingerprint(report.token) != key:
            self.refused += 1
            raise ChannelError(f"report for job {report.job} with a wrong token; dropped")
        # Where the comment names none yet, the first one's token is what may turn out to be right.
        known = self._tokens.get(report.job)
        if key is None and known is not None and known != report.token:
            self.refused += 1
            raise ChannelError(f"report for job {report.job} with another token than its first; dropped")
        self._tokens[report.job] = report.token

    def get(self, job_id: str) -> JobNews | None:
        """The newest word of the job, if its comment vouches for who said it."""
        with self._lock:
            return self._news.get(job_id) if self._vouched(job_id) else None

    def saved_since(self, job_id: str, restart: int, moment: float) -> bool:
        """Whether this incarnation has completed a checkpoint that was heard of after ``moment``."""
        news = self.get(job_id)
        return bool(news and news.report.restart == restart and news.saved_at is not None and news.saved_at >= moment)

    def finishes(self, job_id: str, restart: int) -> bool:
        """Whether this incarnation has made its last step and is about to end by itself. Who goes on for much longer
        does something else, such as a long evaluation."""
        news = self.get(job_id)
        if news is None or news.report.restart != restart or news.done_at is None:
            return False
        return time.time() - news.done_at < FINISHES_WITHIN_S


def _check_order(report: Report, last: Report) -> None:
    if report.restart < last.restart:
        raise ChannelError(f"report of run {report.restart} of job {report.job}, which is over; dropped")
    if report.restart == last.restart and report.seq <= last.seq:
        raise ChannelError(f"report {report.seq} of job {report.job} came before; dropped")


def _update(news: JobNews, report: Report, identity: bytes | None, live: bool) -> None:
    now = time.time()
    news.report, news.heard, news.live = report, now, live
    news.identity = identity or news.identity
    if report.kind == "hello" and news.hello is None:
        news.hello = now
    if report.steps is not None:
        if news.first_steps is None:
            news.first_steps = report.steps
        if news.first_step is None and report.steps > news.first_steps:
            news.first_step = now
    if report.steps_per_s is not None and report.kind == "report":
        news.speeds = [*news.speeds[-31:], report.steps_per_s]
    if report.saved_step is not None and report.saved_step != news.saved_step:
        news.saved_step = report.saved_step
    if report.kind == "saved":
        news.saved_at = now
    if news.done_at is None and report.total_steps is not None:
        news.done_at = now if max(report.steps or 0, report.saved_step or 0) >= report.total_steps else None
    if report.kind == "bye":
        news.ended = True
