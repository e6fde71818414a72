"""One copy's part in the life of a forked job, as its leading worker plays it.

A *period* begins with a commit, which deals step indices out to its members. A member trains its share, then offers its
weights. When all have offered, one of them (the lowest number first) consolidates and publishes the next commit. A
period ends early for everybody, by a mark in the directory, when its time is up, when a copy joins or wishes to save,
or when who is ready has waited long enough; whoever is not ready then offers what it has, so work is lost only with a
copy that dies. Who gives no answer is not waited for longer than its work is worth. Our definition.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from slurm_hadar import forks
from slurm_hadar.errors import CheckpointError
from slurm_hadar.forks import PeriodPlan, Span
from slurm_hadar.joblog import say
from slurm_hadar.runtime.forks.meeting import Commit, MeetingDirectory, Offer

__all__ = ["Member", "PeriodLength"]

POLL_S = 0.02
PROBE_STEPS = 1000  # the share of a copy whose speed nobody knows; time ends its period
# who is ready with its share waits so long for the others before it closes the period
GRACE_S, LEAST_GRACE_S = 1.0, 0.2
LONG_STEP_S = 0.1
HARD_S = 5.0  # a copy that lives, but does not offer though the period is closed, is waited for at least so long
TURN_S = 3.0  # the next copy's turn to consolidate, if the one before it has not done so
COMPLAIN_S = 30.0

Merge = Callable[[list[Offer], Commit, Path], None]


class PeriodLength:
    """How long a period is: ``steps`` of the whole job, or ``seconds``; None for both = by what consolidations cost."""

    def __init__(self, steps: int | None = None, seconds: float | None = None) -> None:
        if (steps is not None and steps < 1) or (seconds is not None and not seconds > 0):
            raise ValueError("a period must have at least one step, or last longer than 0 s")
        self.steps, self.given_s = steps, seconds

    def seconds(self, stall_s: float | None) -> float | None:
        """None where the period is counted in steps."""
        if self.steps is not None:
            return None
        return self.given_s if self.given_s is not None else forks.period_s(stall_s)


class Member:
    """The leading worker's view of the job.

    Parameters
    ----------
    meeting: where the copies meet. restart: how often Slurm has restarted this copy. period: the same for all copies.
    merge: ``merge(offers, base, path)`` writes the consolidation of the offers to ``path``.
    """

    def __init__(self, meeting: MeetingDirectory, restart: int, period: PeriodLength, merge: Merge) -> None:
        self._meeting, self._restart, self._period, self._merge = meeting, restart, period, merge
        self._complained = 0.0
        self._waiting_since = 0.0
        self.copy = meeting.copy

    # Beginning

    def begin(self, total_steps: int, epoch_batches: int | None, seed: int, write: Callable[[Path], None]) -> Commit:
        """The newest commit; where there is none, one with this copy's own initial weights, unless another is first.

        ``write(path)`` writes the initial state. Raises CheckpointError if the disk fails, or if the job is another.
        """
        commit = self._newest_sound()
        if commit is None:
            path = self._meeting.weights_path(0)
            self._written(path, write)
            size, digest = self._meeting.measure(path)
            to_do = forks.union([(0, total_steps)])
            shares = self._deal(to_do, {self.copy: 0.0}, None, None)
            first = Commit(
                0,
                0,
                total_steps,
                to_do,
                shares,
                {self.copy: 0.0},
                path.name,
                size,
                digest,
                self.copy,
                period_s=self._period.seconds(None),
                epoch_batches=epoch_batches,
                seed=seed,
            )
            self._meeting.publish(first)
            commit = self._newest_sound()
        if commit is None:
            raise CheckpointError(f"{self._meeting.directory}: the first commit cannot be read back")
        if commit.total_steps != total_steps:
            raise CheckpointError(
                f"{self._meeting.directory} belongs to a training of {commit.total_steps} steps, and this one has "
                f"{total_steps}; give all copies the same total_steps, and a new training a name of its own"
            )
        return commit

    def _newest_sound(self) -> Commit | None:
        """The newest commit whose weights are what they were; a damaged one is set aside."""
        while (commit := self._meeting.newest()) is not None:
            problem = self._meeting.check(commit)
            if problem is None:
                return commit
            later = self._meeting.after(commit.number)
            if later is None:  # else it was only cleared away behind a newer one
                say(f"consolidation {commit.number} is passed over, its steps are done anew: {problem}")
                self._meeting.reject(commit)
        return None

    def share(self, commit: Commit) -> tuple[Span, ...]:
        """What this copy is to do now; empty if it has no share, or if an earlier run of it has offered already."""
        mine = commit.shares.get(self.copy, ())
        return () if mine and self.copy in self._meeting.offers(commit) else mine

    # During a period

    def ends(self, commit: Commit, trained_s: float, step_s: float) -> bool:
        """Whether the period is over before the share is done; ``trained_s`` since its begin.

        A copy with long steps (``step_s``) begins none that would end after the others' time is up: they would wait.
        """
        if self._meeting.closing(commit.number) or self._meeting.after(commit.number) is not None:
            return True
        if commit.period_s is not None and trained_s >= commit.period_s:
            self.close(commit)
            return True
        return commit.period_s is not None and step_s > LONG_STEP_S and trained_s + step_s > commit.period_s

    def close(self, commit: Commit) -> None:
        """End the period for all; where the disk is full, when it has room again or the others' time is up."""
        self._told(self._meeting.close, commit)

    def offer(
        self,
        commit: Commit,
        spans: tuple[Span, ...],
        seconds: float,
        stays: bool,
        stall_s: float | None,
        write: Callable[[Path, str], None],
    ) -> bool:
        """Offer what was made of the share; False if that cannot be counted any more or cannot be written."""
        path = self._meeting.offer_path(commit.number, self.copy)
        offer = Offer(self.copy, self._restart, commit.number, spans, seconds, stays, stall_s, path)
        if self._meeting.after(commit.number) is not None:
            return False
        try:
            self._meeting.offer(offer, write)
        except CheckpointError as error:
            self._complain(f"{error}; this copy's {offer.steps} steps are not counted")
            return False
        return True

    # Between periods

    def next(
        self, commit: Commit, offered: bool, early_s: float = 0.0, ends: Callable[[], bool] = lambda: False
    ) -> Commit | None:
        """Wait for the commit after ``commit``, and make it if it is this copy's turn. ``offered``: this copy has
        offered, ``early_s`` before the period's time is up; else it asks for a share. None as soon as it ``ends``."""
        self._waiting_since = began = time.monotonic()
        closing_since: float | None = None
        joined = offered
        left_out = self.copy in commit.rates and self.copy not in commit.shares  # fewer steps were left than copies
        grace_s = max(early_s, self._grace_s(commit)) if offered or left_out else 0.0
        while True:
            later = self._meeting.after(commit.number)
            if later is not None:
                return later
            if ends():
                return None
            joined = joined or self._told(self._meeting.join, commit)
            now = time.monotonic()
            if closing_since is None and self._meeting.closing(commit.number):
                closing_since = now
            if closing_since is None and now - began >= grace_s:
                self.close(commit)
            self._maybe_merge(commit, now, closing_since)
            time.sleep(POLL_S)

    def _grace_s(self, commit: Commit) -> float:
        """How long to wait for the others once this copy is ready: not at all where there is more to do for it, and the
        period is one of time."""
        dealt = sum(forks.count(spans) for spans in commit.shares.values())
        if commit.period_s is not None and dealt < forks.count(commit.to_do):
            return 0.0
        return GRACE_S if commit.stall_s is None else max(LEAST_GRACE_S, 3 * commit.stall_s)

    def _maybe_merge(self, commit: Commit, now: float, closing_since: float | None) -> None:
        offers = self._meeting.offers(commit)
        missing = commit.shares.keys() - offers.keys()
        plan = self._meeting.plan() if missing else None
        if any(self._worth_waiting(commit, plan, copy, now, closing_since) for copy in missing):
            return
        ready = sorted({c for c, o in offers.items() if o.stays} | self._meeting.joiners(commit.number) | {self.copy})
        turn_s = max(TURN_S, 5 * (commit.stall_s or 0.0))
        if now - self._waiting_since >= turn_s * ready.index(self.copy):
            self._make(commit, offers)

    def _worth_waiting(
        self, commit: Commit, plan: PeriodPlan | None, copy: int, now: float, closing_since: float | None
    ) -> bool:
        """A live copy is waited for as long as its work is worth more than the time of those who wait."""
        gone = plan is not None and plan.after >= commit.number and copy not in plan.quotas
        if gone or not self._meeting.alive(copy):
            return False
        if closing_since is None:
            return True
        others = sum(r for c, r in commit.rates.items() if c != copy)
        worth_s = (commit.period_s or 0.0) * commit.rates.get(copy, 0.0) / others if others else 0.0
        return now - closing_since < max(HARD_S, 10 * (commit.stall_s or 0.0), worth_s)

    def _make(self, commit: Commit, offers: dict[int, Offer]) -> None:
        """Consolidate and publish; leave it to others if anything fails."""
        number = commit.number + 1
        path = self._meeting.weights_path(number)
        used = [o for o in offers.values() if o.steps]
        try:
            if used and len(commit.shares) == 1:  # a copy alone: its weights are the consolidation
                self._written(path, lambda fresh: os.link(used[0].path, fresh))
            elif used:
                self._written(path, lambda fresh: self._merge(used, commit, fresh))
            following = self._following(commit, number, offers, path if used else self._meeting.path_of(commit))
            if self._meeting.publish(following):
                return
            later = self._meeting.after(commit.number)
            if used and (later is None or later.weights != path.name):
                path.unlink(missing_ok=True)
            if later is None:
                raise CheckpointError("its name is taken by a file that cannot be read")
        except (CheckpointError, OSError) as error:
            if self._meeting.after(commit.number) is None:
                self._complain(f"consolidation {number} was not made: {error}")
                self._waiting_since = time.monotonic()  # not again at once
                time.sleep(POLL_S * 10)

    def _following(self, commit: Commit, number: int, offers: dict[int, Offer], weights: Path) -> Commit:
        done = forks.union([s for o in offers.values() for s in o.spans])
        to_do = forks.less(commit.to_do, done)
        step = commit.total_steps - forks.count(to_do)
        rates = {c: _rate(o, commit.rates.get(c, 0.0)) for c, o in offers.items() if o.stays}
        for copy in self._meeting.joiners(commit.number):
            rates.setdefault(copy, commit.rates.get(copy, 0.0))
        rates.setdefault(self.copy, commit.rates.get(self.copy, 0.0))
        stalls = [o.stall_s for o in offers.values() if o.stall_s is not None]
        stall_s = statistics.median(stalls) if stalls else commit.stall_s
        plan = self._plan_for(rates)
        seconds = plan.period_s if plan is not None else self._period.seconds(stall_s)
        size, digest = (
            (commit.size, commit.sha256) if weights.name == commit.weights else self._meeting.measure(weights)
        )
        return replace(
            commit,
            number=number,
            step=step,
            to_do=to_do,
            rates=rates,
            weights=weights.name,
            size=size,
            sha256=digest,
            shares=self._deal(to_do, rates, seconds, plan) if to_do else {},
            by=self.copy,
            period_s=seconds,
            stall_s=stall_s,
            offered={c: o.steps for c, o in offers.items()},
            closer=None if to_do else self.copy,
        )

    def _plan_for(self, rates: Mapping[int, float]) -> PeriodPlan | None:
        """The tracker's plan, if there is one that covers all members."""
        plan = self._meeting.plan()
        covers = plan is not None and rates.keys() <= plan.quotas.keys() and any(plan.quotas[c] for c in rates)
        return plan if covers else None

    def _deal(
        self, to_do: tuple[Span, ...], rates: Mapping[int, float], seconds: float | None, plan: PeriodPlan | None
    ) -> dict[int, tuple[Span, ...]]:
        """Shares of the next period: by the tracker's plan, else by the members' own rates."""
        left = forks.count(to_do)
        if plan is not None:
            weights = {c: float(plan.quotas[c]) for c in rates}
            wanted = int(sum(weights.values()))
        else:
            weights, wanted = dict(rates), self._steps_of(rates, seconds)
        dealt = forks.cut(to_do, forks.quotas(weights, min(left, max(wanted, len(rates)))))
        return {copy: spans for copy, spans in dealt.items() if spans}

    def _steps_of(self, rates: Mapping[int, float], seconds: float | None) -> int:
        if self._period.steps is not None:
            return self._period.steps
        known = forks.period_steps(list(rates.values()), seconds) if seconds is not None else 0
        return known or PROBE_STEPS * len(rates)

    # Help

    def _told(self, mark: Callable[[int], None], commit: Commit) -> bool:
        """Leave a mark for the others; False, and said, where the disk takes none."""
        try:
            mark(commit.number)
        except CheckpointError as error:
            self._complain(str(error))
            return False
        return True

    def _written(self, path: Path, write: Callable[[Path], None]) -> None:
        """Write under a name that nobody looks at, then give it its own."""
        fresh = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            fresh.unlink(missing_ok=True)
            write(fresh)
            fresh.replace(path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
        finally:
            fresh.unlink(missing_ok=True)

    def _complain(self, text: str) -> None:
        now = time.monotonic()
        if now - self._complained > COMPLAIN_S or not self._complained:
            self._complained = now
            say(text)


def _rate(offer: Offer, before: float) -> float:
    """Half of what is measured now, half of what was known: one disturbed period must not upset the shares."""
    if offer.steps < 2 or offer.rate <= 0:
        return before
    return 0.5 * offer.rate + 0.5 * before if before else offer.rate
