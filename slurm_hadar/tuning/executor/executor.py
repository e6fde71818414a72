"""The tuner's loop: hears trials, lets them start and end, group by group."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import zmq

from slurm_hadar.errors import AllocationLost, HadarError
from slurm_hadar.tuning.allocation.widths import lower_bound_s
from slurm_hadar.tuning.executor.channel import Channel
from slurm_hadar.tuning.executor.ends import Ends
from slurm_hadar.tuning.executor.group import Group
from slurm_hadar.tuning.executor.handler import MessageHandler
from slurm_hadar.tuning.executor.launch import Ended, Launcher
from slurm_hadar.tuning.executor.live import Live, Stage, Why
from slurm_hadar.tuning.executor.runs import Runs
from slurm_hadar.tuning.executor.site import Sites
from slurm_hadar.tuning.executor.state import State
from slurm_hadar.tuning.study.book import End

__all__ = ["Executor", "Stopped"]

TICK_S = 0.5
_LOOK_S = 1.0
_END_S = 30.0
_SURVEY_S = 60.0


class Stopped(Exception):
    """The executor was told to end, or has reached its target."""


class Executor:
    """Runs groups of trials one after the other::

        with executor.group() as group:
            for number in numbers:
                group.submit(number, until=9)

    At the end of the block all of the group have come to their rung, or have ended. Raises Stopped where the run ends
    before that, and HadarError where it cannot go on; either way the trials were saved first, and are Optuna's WAITING.

    ``look`` is called now and then, to show how it stands. ``survey`` says which GPUs there are now, where that may
    change, None where nothing tells; then trials are on other nodes, too. It raises AllocationLost where they are
    another run's: the study, too, which goes on there.
    """

    def __init__(
        self,
        state: State,
        launcher: Launcher,
        look: Callable[[Executor], None] | None = None,
        survey: Callable[[], Sites | None] | None = None,
    ) -> None:
        self.state, self.book, self.record = state, state.book, state.record
        self.stop_asked = self.interrupted = False
        self.began_s = time.monotonic()
        self._launcher, self._show = launcher, look
        self._survey, self._surveyed_s = survey, self.began_s
        self._lost: AllocationLost | None = None
        self._channel = Channel(everywhere=survey is not None)
        self._handler, self._ends = MessageHandler(state, self._channel), Ends(state)
        self._runs = Runs(state, self._channel, launcher)
        self._ticked_s = self._looked_s = 0.0

    @contextlib.contextmanager
    def group(self, deadline_s: float | None = None) -> Iterator[Group]:
        """A trial group; ``deadline_s``: seconds from now, after which those that are not done are stopped where they
        are."""
        group = Group(self.state.lives, None if deadline_s is None else time.monotonic() + deadline_s)
        yield group
        self._play(group)

    def _play(self, group: Group) -> None:
        state = self.state
        state.group, state.allocator = group, state.new_allocator()
        state.submit([live for live in group.members if live.stage is Stage.WAITING])
        try:
            while not group.over:
                if legs := group.next_legs():
                    self.record.event("group", trials=[live.number for live in legs])
                    state.submit(legs)
                self._feed(group)
                self._runs.reconcile(self._handler.warm)
                if group.over:
                    break
                self._hear()
                self._tick(group)
                if self.stop_asked or state.reached is not None:
                    raise Stopped  # also where its GPUs are gone: a job that is cancelled tells the tuner, too
                if self._lost is not None:
                    raise self._lost
        except BaseException as error:
            self.book.impatient = isinstance(error, HadarError)
            self.wind_down()
            raise
        finally:
            self._look()

    def _hear(self) -> None:
        """Wait for what trials say, and for their ends; no longer than a tick."""
        poller = zmq.Poller()
        poller.register(self._channel.socket, zmq.POLLIN)
        for file in self._launcher.files():
            poller.register(file, zmq.POLLIN)
        poller.poll(round(TICK_S * 1000))
        for message in self._channel.messages():
            self._handler.handle(message)
        fault: HadarError | None = None
        for ended in self._launcher.ended():
            try:
                self._note_end(ended)
            except HadarError as error:  # those that are told of with it have ended, too
                fault = fault or error
        if fault is not None:
            raise fault

    def _note_end(self, ended: Ended) -> None:
        live = self.state.lives[ended.run[0]]
        self._runs.clear(live)
        if live.why is None and live.outcome is None:  # perhaps its node has died, or all of this is over
            self._look_for_gpus()
            live.why = None if self._lost is None else Why.STOP
        self._ends.ended(ended)

    def _feed(self, group: Group) -> None:
        """As many trials at a time as there are parts of GPUs, if it pays to share them."""
        state = self.state
        while group.to_come and group.new is not None:
            busy = sum(live.active for live in group.members)
            if busy >= state.sites.count * state.estimates.packing(state.allocator.limits):
                return
            number = group.new()
            if number is None:
                if not busy:
                    group.to_come = 0
                return
            group.to_come -= 1
            state.submit([group.submit(number)])

    def _tick(self, group: Group) -> None:
        now = time.monotonic()
        if now - self._ticked_s < TICK_S:
            return
        self._ticked_s = now
        self.stop_asked |= self.record.stop_requested
        self._runs.enforce()
        if group.late:
            self._deadline(group)
        if self._survey is not None and now - self._surveyed_s > _SURVEY_S:
            self._look_for_gpus()
        if now - self._looked_s >= _LOOK_S:
            self._look()

    def _look_for_gpus(self) -> None:
        """The allocation may have lost a node, or got one."""
        self._surveyed_s = time.monotonic()
        try:
            found = self._survey() if self._survey is not None else None
        except AllocationLost as lost:
            self._lost, found = lost, None
        state = self.state
        if found is None or found.sites == state.sites.sites:
            return
        gone = [site.name for site in state.sites.sites if site not in found.sites]
        come = [site.name for site in found.sites if site not in state.sites.sites]
        words = [f"{', '.join(names)} {verb}" for names, verb in ((gone, "lost"), (come, "found")) if names]
        state.say(f"the job's GPUs have changed: {'; '.join(words)}; {found.count} GPUs now")
        self.record.event("gpus", gone=gone, come=come, count=found.count)
        self._runs.lose(state.use(found))

    def _deadline(self, group: Group) -> None:
        """Who is not done is as if at its rung."""
        group.to_come = 0
        for live in group.members:
            if live.process is not None:
                self._runs.ask_to_end(live, Why.RUNG)
            elif live.active:
                live.stage = Stage.AT_RUNG
                self.state.allocator.withdraw(live.name)
                self.state.allocator.leave(live.name)

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        if self._show is not None:
            self._show(self)

    @property
    def resizes(self) -> int:
        """Trials that were started anew for another width."""
        return self._runs.resizes

    @property
    def closing(self) -> bool:
        """Whether the present group's deadline has passed."""
        return self.state.group is not None and self.state.group.late

    def left_s(self, live: Live) -> float | None:
        """Seconds until a trial that runs is at its rung or over, as it runs now; None if nothing tells."""
        left, rate = live.meter.left(live.goal), live.meter.rate
        return None if left is None or not rate else left / rate

    def expected_s(self) -> float | None:
        """Seconds until the present group is over, as the GPUs could be filled at best; None if nothing tells."""
        state, group = self.state, self.state.group
        if group is None or group.to_come or not any(live.active for live in group.members):
            return None
        if not state.estimates.refresh(group.members, state.allocator):
            return None
        trials = [state.estimates.trial(live, group.members) for live in group.members if live.active]
        return lower_bound_s(trials, state.allocator.pool, state.allocator.limits)

    def finish(self, number: int, end: End) -> None:
        """A trial at its rung goes no further, by the word of the algorithm."""
        live = self.state.lives.setdefault(number, Live(number))
        if live.stage is not Stage.ENDED:
            self._ends.over(live, end)

    def wind_down(self) -> None:
        """All trials save and end; none is left as if it ran. What the storage does not take is left for ``resume``."""
        until = self._runs.stop_all()
        while self.state.running():
            with contextlib.suppress(HadarError):
                self._hear()
            if time.monotonic() > until + _END_S:
                break  # a node that does not answer; its processes hear nobody any more, and end
            if time.monotonic() > until:
                for live in self.state.running():
                    self._runs.kill(live)
        self.lay_down()

    def lay_down(self) -> None:
        """No trial is left as if it ran, nor one that the algorithm has asked for and never submitted."""
        with contextlib.suppress(HadarError):
            self.book.lay_down()

    def close(self) -> None:
        """No process is left."""
        self._channel.close()
        self._runs.close()
