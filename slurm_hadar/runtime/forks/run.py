"""The training loop of one copy of a forked job."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_hadar import forks
from slurm_hadar.errors import CheckpointError
from slurm_hadar.forks import Span
from slurm_hadar.joblog import say
from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.epochs import Epoch, epochs_of
from slurm_hadar.runtime.checkpoint.states.devices import places_of, put_back
from slurm_hadar.runtime.checkpoint.states.parts import refill, restore, state_of
from slurm_hadar.runtime.checkpoint.turns import Turns
from slurm_hadar.runtime.checkpoint.visible import when_visible
from slurm_hadar.runtime.forks import weights
from slurm_hadar.runtime.forks.meeting import Commit, Heartbeat, MeetingDirectory, Offer
from slurm_hadar.runtime.forks.member import Member
from slurm_hadar.runtime.forks.place import ForkPlace
from slurm_hadar.runtime.forks.schedule import Boost, Clock, Follower
from slurm_hadar.runtime.forks.weights import Outer, Source
from slurm_hadar.runtime.progress.endings import Ending, die
from slurm_hadar.runtime.progress.link import Link, stand_still
from slurm_hadar.runtime.spec import TrainingSpec

__all__ = ["Consolidation", "ForkedRun"]

LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Consolidation:
    """How the weights of a forked job's copies are brought together.

    Parameters
    ----------
    outer: an outer optimizer on the consolidated weights; None = plain averaging.
    optimizer_state: ``average`` the copies' momenta and moments, or keep each copy's own (``local``).
    lr_scale: while several copies train, learning rates are higher by their number, counted in copies as fast as the
        fastest, to the power of this: 0 = not, 0.5 = by its square root, 1 = in proportion (the rules for large
        batches: Krizhevsky, arXiv 1404.5997; Goyal et al., arXiv 1706.02677). The mean of several copies has less
        noise, and the job fewer updates one after the other.
    """

    outer: Outer | None = None
    optimizer_state: str = "average"
    lr_scale: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.lr_scale <= 1.0:
            raise ValueError(f"lr_scale={self.lr_scale} must lie between 0 and 1")
        if self.optimizer_state not in ("average", "local"):
            raise ValueError(f"optimizer_state={self.optimizer_state!r} must be average or local")


@dataclass(frozen=True, slots=True)
class PeriodDecision:
    """What a copy's leader decides after a step.

    Parameters
    ----------
    over: the period is, for this copy. asked: the scheduler has asked for a save, and wants no steps for ``pause_s``
    after it. ends: Slurm ends the job. look_after: steps until the workers agree again.
    """

    over: bool = False
    asked: bool = False
    pause_s: float = 0.0
    ends: bool = False
    look_after: int = 1


class _OwnPeriod:
    """A period as this copy goes through it: its share, what it has made of that, and the last decision."""

    def __init__(self, share: tuple[Span, ...], own_steps: int) -> None:
        self.share = share
        self.began = self.looked_at = time.monotonic()
        self.next_look = own_steps + 1
        self.decision = PeriodDecision()
        self.made: list[Span] = []

    @property
    def steps(self) -> int:
        return forks.count(self.made)

    def add(self, index: int) -> None:
        """The step of this index is made."""
        if self.made and self.made[-1][1] == index:
            self.made[-1] = (self.made[-1][0], index + 1)
        else:
            self.made.append((index, index + 1))


class ForkedRun:
    """Iterate over it for batches, as over :class:`slurm_hadar.runtime.run.Run`; made by ``train`` in a copy.

    ``step`` is the step of the whole job, as far as one copy can tell within a period; ``copy`` the number of this copy
    and ``own_steps`` what it has made in this run. When all steps are done, one copy leaves the loop with the final
    weights; the others end their process (SystemExit) with exit code 0.
    """

    def __init__(self, spec: TrainingSpec, place: ForkPlace, consolidation: Consolidation) -> None:
        self.total_steps, self.worker_batch = spec.total_steps, spec.worker_batch
        self.state, self.also = spec.state, spec.also
        self.copy, self.own_steps = place.copy, 0
        self._parts, self._gang, self._feed, self._pace = spec.parts, spec.gang, spec.feed, spec.pace
        self._how = consolidation
        self._clock = Clock()
        self._schedule = Follower(self._parts["scheduler"], self._clock)
        self._boost = Boost(self._parts["optimizer"])
        self._link = Link(spec.gang, resumable=True)
        self._ending = Ending(self._gang.leads)
        self._wanted = self._told = False
        self._turns = Turns(self._parts["optimizer"].values())
        self._period: _OwnPeriod | None = None  # the one that was begun
        self._loaded: Commit | None = None
        self._stall_s: float | None = None
        self._lost_s = self._trained_s = 0.0
        self._meeting, self._heartbeat, self._member = None, None, None
        if self._gang.leads:
            self._meeting = MeetingDirectory(place.directory, place.copy)
            self._heartbeat = Heartbeat(self._meeting)
            atexit.register(self._heartbeat.stop)  # of a loop that was left, and not entered again
            self._member = Member(self._meeting, place.restart, place.period, self._merge)
        self._directory = place.directory
        self._commit = self._begin(place)

    @property
    def step(self) -> int:
        """Steps of the whole job, as far as is known: what others make within a period is reckoned, and counts as the
        last one only once it is committed, lest a script that takes the training for done leaves too early."""
        return min(self._clock.step, self.total_steps if self._commit.complete else self.total_steps - 1)

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, from 0."""
        return self._feed.epoch

    @property
    def consolidation(self) -> int:
        """Number of the newest consolidation that this copy has; the weights are its own in the first step after it."""
        return self._commit.number

    def save(self) -> None:
        """Bring the next consolidation forward to the end of this step; rank 0's call counts."""
        self._wanted = True

    def stop(self) -> None:
        """Ends nothing, and says so: each copy would stop at another step."""
        if not self._told and self._gang.leads:
            self._told = True
            say("WARNING: run.stop() ends no forked job, whose copies are at unlike steps: it trains to total_steps")

    def epochs(self) -> Iterator[tuple[int, Epoch]]:
        """Epochs of which this copy makes steps, in the order in which it comes through them."""
        return epochs_of(self, self._feed)

    def __iter__(self) -> Iterator[Any]:
        self._turns.start()
        try:
            with self._ending:
                while not self._commit.complete:
                    period = self._period or self._next_period()
                    yield from self._batches(period)
                    self._period = None
                    trained_s = time.monotonic() - period.began
                    self._trained_s += trained_s
                    self._consolidate(period, trained_s)
                self._ending.safe = True
        except Exception:  # not GeneratorExit: left by ``break``, the period goes on where the loop is entered again
            self._stop_beating()
            raise
        finally:
            self._turns.stop()
        self._stop_beating()
        self._leave()

    def _stop_beating(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()

    # Beginning and end

    def _begin(self, place: ForkPlace) -> Commit:
        commit, error = None, None
        if self._member is not None:
            try:
                commit = self._member.begin(
                    self.total_steps, self._feed.epoch_batches, _seed(), lambda path: self._write(path, "")
                )
            except CheckpointError as problem:
                error = str(problem)
        commit, error = self._gang.broadcast((commit, error))
        if error is not None or commit is None:
            if self._heartbeat is not None:
                self._heartbeat.stop()
            raise CheckpointError(error or "no consolidation")
        self._feed.fix_order(commit.seed)
        if self._gang.leads and self._feed.goes_on:
            say(
                "WARNING: the loader tells no length, so that each copy goes through all of the data by itself, and "
                "samples are trained several times: give a DataLoader over a dataset with a length, or a list"
            )
        self._load(commit)
        # what is drawn in training (dropout, augmentation) must differ between copies, runs and workers
        rng.seed(commit.seed + 1, (place.copy * 1000 + place.restart) * 1000 + self._gang.rank, gpus=True)
        self._link.begin(0, self.total_steps)
        self._report(self._commit)
        if self._gang.leads:
            say(f"copy {self.copy} begins with consolidation {commit.number}: step {commit.step} of the job")
        return self._commit

    def _leave(self) -> None:
        self._clock.begin(self.total_steps, 1.0, 0)
        if self._gang.leads:
            share = self._lost_s / (self._lost_s + self._trained_s) if self._trained_s else 0.0
            say(
                f"copy {self.copy} made {self.own_steps} of {self.total_steps} steps in {self._trained_s:.1f} s; "
                f"consolidations cost it {share:.1%} of its time"
            )
        self._gang.leave_together()
        if self._commit.closer != self.copy:
            if self._gang.leads:
                say(f"all steps are done; copy {self._commit.closer} goes on to the end of the script")
            sys.stdout.flush()
            raise SystemExit(0)

    # A period

    def _next_period(self) -> _OwnPeriod:
        share = self._gang.broadcast(self._member.share(self._commit) if self._member else None)
        self._period = _OwnPeriod(share, self.own_steps)
        if share:
            self._start()
        return self._period

    def _start(self) -> None:
        rates, dealt = self._commit.rates, sum(forks.count(spans) for spans in self._commit.shares.values())
        own = rates.get(self.copy, 0.0)
        self._clock.begin(self._commit.step, sum(rates.values()) / own if own else 1.0, dealt)
        self._boost.factor = self._at_once() ** self._how.lr_scale
        if self._pace is not None:
            self._pace.restart()

    def _at_once(self) -> float:
        """How many copies train, counted in copies as fast as the fastest; 1 while their speeds are not known."""
        rates = [self._commit.rates.get(copy, 0.0) for copy in self._commit.shares]
        return sum(rates) / max(rates) if rates and max(rates) > 0 else 1.0

    def _batches(self, period: _OwnPeriod) -> Iterator[Any]:
        """The batches of the share that were not made yet, until the period is over. What comes after a ``yield`` is
        the end of a step; a turn that leaves the loop is one if an optimizer has stepped."""
        for start, stop in forks.less(period.share, period.made):
            self._feed.seek(start, self._commit.epoch_batches)
            for index in range(start, stop):
                batch = self._feed.next()
                try:
                    yield batch
                except GeneratorExit:
                    if self._turns.stepped:
                        self._made(period, index)
                    raise
                self._made(period, index)
                if self._pace is not None:
                    self._pace.wait()
                if self._is_over(period):
                    return

    def _made(self, period: _OwnPeriod, index: int) -> None:
        self._clock.made += 1
        self.own_steps += 1
        period.add(index)
        self._turns.end()
        self._link.count(self.own_steps)

    def _is_over(self, period: _OwnPeriod) -> bool:
        """Look, now and then, whether the period shall end before the share is done; the same on all workers. Not amid
        the turns of which an optimizer sums up gradients: these are in no offer."""
        if not self._turns.ripe():
            return False
        now = time.monotonic()
        if self._gang.world == 1:
            if now - period.looked_at < LOOK_S and not self._wanted:
                return False
        elif self.own_steps < period.next_look:
            return False
        decision = self._gang.agree(self._decide(now - period.began) if self._gang.leads else PeriodDecision())
        period.looked_at, period.next_look, period.decision = now, self.own_steps + decision.look_after, decision
        return decision.over

    def _decide(self, trained_s: float) -> PeriodDecision:
        """The leader's; ``trained_s`` since the period began for this copy."""
        assert self._member is not None
        asked, pause_s = self._link.asked()
        if self._wanted:
            self._wanted = False
            self._member.close(self._commit)
        per_step_s = trained_s / max(1, self._clock.made)
        ends = self._ending.asked
        over = asked or ends or self._member.ends(self._commit, trained_s, per_step_s)
        return PeriodDecision(over, asked, pause_s, ends, self._gang.steps_until_look(LOOK_S, per_step_s))

    # Between periods

    def _consolidate(self, period: _OwnPeriod, trained_s: float) -> None:
        began, asked = time.monotonic(), period.decision.asked
        may_offer = bool(period.share) and self._gang.leads
        offered = bool(self._gang.broadcast(self._offer(period, trained_s) if may_offer else None))
        if period.decision.ends:
            self._end(period, offered)
        if asked:
            self._answer(period, offered, time.monotonic() - began)
            began = time.monotonic()
        before, early_s = self._commit, self._early_s(period, trained_s)
        following = self._gang.broadcast(
            self._member.next(before, offered and not asked, early_s, lambda: self._ending.asked)
            if self._member
            else None
        )
        if following is None:
            self._end(period, offered)
        alone = offered and following.number == before.number + 1 and [*before.shares] == [self.copy]
        if alone:
            self._commit = following
        else:
            self._load(following)
        if not asked and period.share:
            self._stall_s = time.monotonic() - began
            self._lost_s += self._stall_s
        self._report(self._commit)

    def _early_s(self, period: _OwnPeriod, trained_s: float) -> float:
        """How long before the end of the period this copy has stopped, since a step would have taken it beyond."""
        ends_s = self._commit.period_s
        cut = period.steps < forks.count(self._commit.shares.get(self.copy, ()))
        return max(0.0, ends_s - trained_s) if ends_s is not None and cut else 0.0

    def _offer(self, period: _OwnPeriod, trained_s: float) -> bool:
        assert self._member is not None
        made, stays = tuple(period.made), not (period.decision.asked or period.decision.ends)
        try:
            return self._member.offer(self._commit, made, trained_s, stays, self._stall_s, self._write)
        except CheckpointError as error:
            say(f"{error}; the steps of this period are not counted")
            return False

    def _answer(self, period: _OwnPeriod, saved: bool, took_s: float) -> None:
        """The scheduler has asked for a save: the offer is it. Then wait to be stopped, or told to go on."""
        if self._gang.leads:
            if saved:
                self._link.saved(self._commit.step + period.steps, self._commit.number, took_s)
            else:
                self._link.failed()
        stand_still(self._link, self._gang, period.decision.pause_s)

    def _end(self, period: _OwnPeriod, saved: bool) -> None:
        """Slurm ends the job: the offer is the save. One that has failed was told of."""
        if self._gang.leads and saved and period.steps:
            say(f"told to end (SIGTERM); the {period.steps} steps of copy {self.copy} in this period are saved")
        die()

    def _report(self, commit: Commit) -> None:
        if self._gang.leads:
            closes = commit.complete and commit.closer == self.copy
            self._link.consolidated(commit.number, commit.step, self._stall_s, closes)

    # Weights

    def _write(self, path: Path, header: str) -> None:
        content = {kind: state_of(part) for kind, part in self._parts.items()}
        content["user"] = self.state
        places = places_of(content, self._parts)
        tensors, plain = weights.pack(
            {**content, "plain": self.also, "clock": self._schedule.position, "places": places}
        )
        parameters = [
            f"model/{name}/{parameter}"
            for name, model in self._parts["model"].items()
            for parameter, value in getattr(model, "named_parameters", lambda: ())()
            if value.requires_grad
        ]
        weights.write(path, tensors, {"content": plain, "parameters": parameters}, header)

    def _merge(self, offers: list[Offer], base: Commit, path: Path) -> None:
        assert self._meeting is not None
        sources = [Source(o.path, o.steps) for o in sorted(offers, key=lambda o: o.copy)]
        try:
            weights.consolidate(sources, path, self._meeting.path_of(base), self._how.outer)
        except CheckpointError:
            for offer in offers:
                if not _readable(offer.path):
                    say(f"the offer of copy {offer.copy} is damaged; its {offer.steps} steps are done anew")
                    self._meeting.drop(offer)
            raise

    def _load(self, commit: Commit) -> None:
        """Take over the weights of ``commit``, or of a newer one if that has been cleared away meanwhile."""
        commit, read = self._read(commit)
        content = put_back(read, self._parts)
        local = self._how.optimizer_state == "local" and self._loaded is not None
        parts = {kind: part for kind, part in self._parts.items() if not (local and kind == "optimizer")}
        advice = "all copies must run the same script with the same model"
        restore(parts, content, self._directory / commit.weights, advice, self.also)
        refill(self.state, content["user"])
        self._commit = self._loaded = commit
        self._clock.begin(commit.step, 1.0, 0)
        self._schedule.go_to(content["clock"], commit.step)

    def _read(self, commit: Commit) -> tuple[Commit, dict[str, Any]]:
        """All workers read the same file; the leader first, since it knows whether there is a newer one."""
        content, error = None, None
        if self._meeting is not None:
            commit, content, error = _read_newest(self._meeting, commit)
        commit, error = self._gang.broadcast((commit, error))
        if error is not None:
            raise CheckpointError(error)
        if content is None:
            path = self._directory / commit.weights
            content = when_visible(path, lambda: _content(path))
        return commit, content


def _read_newest(meeting: MeetingDirectory, commit: Commit) -> tuple[Commit, dict[str, Any] | None, str | None]:
    while True:
        try:
            return commit, _content(meeting.path_of(commit)), None
        except CheckpointError as error:
            later = meeting.after(commit.number)
            if later is None:
                return commit, None, str(error)
            commit = later


def _content(path: Path) -> dict[str, Any]:
    tensors, plain = weights.read(path)
    content: dict[str, Any] = weights.unpack(tensors, plain["content"])
    return content


def _readable(path: Path) -> bool:
    try:
        weights.read(path)
    except CheckpointError:
        return False
    return True


def _seed() -> int:
    import torch

    return torch.initial_seed() % 2**48
