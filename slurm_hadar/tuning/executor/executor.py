"""The tuner's loop: hears trials, ends and starts their processes, as the allocator decides."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import zmq

from slurm_hadar.errors import HadarError
from slurm_hadar.sharing.broker.looking import FOLDER
from slurm_hadar.tuning.allocator import Allocator
from slurm_hadar.tuning.executor.book import Book, End, Report, finite
from slurm_hadar.tuning.executor.desk import Desk, Message
from slurm_hadar.tuning.executor.estimate import Estimates
from slurm_hadar.tuning.executor.launch import Ended, Launcher
from slurm_hadar.tuning.executor.live import Live, Stage, Why
from slurm_hadar.tuning.executor.profile import Profile
from slurm_hadar.tuning.executor.record import Record
from slurm_hadar.tuning.executor.site import Sites
from slurm_hadar.tuning.pool import Limits
from slurm_hadar.tuning.trial.wire import Spec
from slurm_hadar.tuning.widths import lower_bound_s

__all__ = ["Executor", "Group", "Leg", "Settings", "Stopped"]

TICK_S = 0.5
_LOOK_S = 1.0
_GRACE_S = 120.0  # a large model takes long to save
_END_S = 30.0
_SOLO_S = 15.0
_REST = 3.0
_MOST_CRASHES = 3
_MOST_FAILURES = 10


class Stopped(Exception):
    """The executor was told to end, or has reached its target."""


@dataclass(frozen=True)
class Settings:
    """``hooked``: the objective uses a loop of ours, so that it may share a GPU, have several, and be moved.

    time_limit_s: of one trial's running time. target: a value at which the search is over.
    """

    file: Path
    function: str
    metric: str | None = None
    target: float | None = None
    time_limit_s: float | None = None
    packed: int = 2
    widest: int = 4
    hooked: bool = True
    look: Callable[[Executor], None] | None = None


@dataclass(frozen=True, slots=True)
class Leg:
    """Trials that run to the report of step ``until``, or to their own end."""

    trials: tuple[int, ...]
    until: int | None


@dataclass
class Group:
    """Trials whose end together counts. ``to_come``: how many more are asked for as GPUs come free. ``courses`` run
    beside each other, each in legs (trials, and the report to which they run), the next of which it names when the
    trials of the one before are all done: brackets, say."""

    executor: Executor
    deadline_s: float | None = None  # of time.monotonic()
    members: list[Live] = field(default_factory=list)
    to_come: int = 0
    new: Callable[[], int | None] | None = None
    _legs: list[tuple[Iterator[Leg], list[Live]]] = field(default_factory=list)

    def submit(self, number: int, until: int | None = None) -> Live:
        """A trial of the study is to run, to the report of step ``until`` or to its own end."""
        live = self.executor.lives.setdefault(number, Live(number))
        live.until, live.stage = until, Stage.WAITING
        if live not in self.members:
            self.members.append(live)
        return live

    def follow(self, course: Iterator[Leg]) -> None:
        """One more course."""
        self._legs.append((course, []))

    def next_legs(self) -> list[Live]:
        """Who is to run now, since its course has got so far."""
        found: list[Live] = []
        going = []
        for course, leg in self._legs:
            while not any(live.active for live in leg):
                said = next(course, None)
                if said is None:
                    break
                leg = [] if self.late else [self.submit(number, said.until) for number in said.trials]
                found += leg
            else:
                going.append((course, leg))
        self._legs = going
        return found

    def feed(self, new: Callable[[], int | None], count: int) -> None:
        """So many more trials, each made by ``new`` (None: there are no more) when GPUs are free for it."""
        self.new, self.to_come = new, count

    @property
    def late(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_s is not None and time.monotonic() > self.deadline_s

    @property
    def over(self) -> bool:
        return not self.to_come and not self._legs and not any(live.active for live in self.members)


class Executor:
    """Runs groups of trials one after the other::

        with executor.group() as group:
            for number in numbers:
                group.submit(number, until=9)

    At the end of the block all of the group have come to their rung, or have ended. Raises Stopped where the run ends
    before that, and HadarError where it cannot go on; either way the trials were saved first, and are Optuna's WAITING.
    """

    def __init__(
        self, book: Book, sites: Sites, launcher: Launcher, record: Record, profile: Profile, settings: Settings,
        say: Callable[[str], None], everywhere: bool = False,
    ) -> None:  # fmt: skip
        self.book, self.sites, self.record, self.profile, self.settings = book, sites, record, profile, settings
        self.lives: dict[int, Live] = {}
        self.current: Group | None = None
        self.stop_asked = False
        self.reached: int | None = None  # the trial that has reached the target
        self._reached_value: float | None = None
        self.began_s = time.monotonic()
        self.resizes = 0
        self.best: dict[str, Any] | None = None  # trial and value, reports counted
        self._launcher, self._say = launcher, say
        self._desk = Desk(everywhere)
        self._estimates = Estimates(profile, dict(sites.speeds))
        self._allocator = self._new_allocator()
        self._sockets = Path("/tmp") / f"{FOLDER}tune-{os.getpid()}-{self._desk.token[:8]}"
        self._meet = Path(tempfile.gettempdir())
        self._ticked_s = self._looked_s = 0.0
        self._changed = False
        self._failures = 0
        self._warm = False  # what is started only once is there
        self._completed_any = False

    def _new_allocator(self) -> Allocator:
        packed = min(self.settings.packed, self.profile.packed or self.settings.packed) if self.settings.hooked else 1
        limits = Limits(packed, self.settings.widest if self.settings.hooked else 1)
        return Allocator(self.sites.pool(), limits, self.profile.resize_s)

    @contextlib.contextmanager
    def group(self, deadline_s: float | None = None) -> Iterator[Group]:
        """A trial group; ``deadline_s``: seconds from now, after which those that are not done are stopped where they
        are."""
        group = Group(self, None if deadline_s is None else time.monotonic() + deadline_s)
        yield group
        self._play(group)

    def _play(self, group: Group) -> None:
        self.current = group
        self._allocator = self._new_allocator()
        waiting = [live for live in group.members if live.stage is Stage.WAITING]
        self._submit(waiting)
        try:
            while not group.over:
                if legs := group.next_legs():
                    self.record.event("group", trials=[live.number for live in legs])
                    self._submit(legs)
                self._feed()
                self._reconcile()
                if group.over:
                    break
                self._hear()
                self._tick()
                if self.stop_asked or self.reached is not None:
                    raise Stopped
        except BaseException as error:
            self.book.impatient = isinstance(error, HadarError)
            self.wind_down()
            raise
        finally:
            self._look()

    # --- what comes in

    def _hear(self) -> None:
        poller = zmq.Poller()
        poller.register(self._desk.socket, zmq.POLLIN)
        for file in self._launcher.files():
            poller.register(file, zmq.POLLIN)
        poller.poll(round(TICK_S * 1000))
        for message in self._desk.messages():
            self._message(message)
        for ended in self._launcher.ended():
            self._ended(ended)

    def _message(self, message: Message) -> None:
        live = self.lives.get(message.trial)
        if live is None or live.process != (message.trial, message.run):
            if message.asks:
                self._desk.say_gone(message)
            return
        if not message.asks:
            self._beat(live, message)
            return
        try:
            self._desk.answer(message, self._answer(live, message))
        except HadarError:
            self._desk.say_gone(message)  # so that it saves: the run is over
            raise
        except Exception as error:  # Optuna's words for what the objective asks
            self._desk.answer(message, error=str(error))

    def _answer(self, live: Live, message: Message) -> Any:
        said = message.said
        match message.op:
            case "hello":
                live.step, self._warm = said.get("step") or live.step, True
            case "suggest":
                return self.book.suggest(live.number, said["kind"], said["name"], said["arguments"])
            case "report":
                return self._report(live, int(said["step"]), finite(said["value"]), str(said["value"]))
            case "should_prune":
                if live.why is Why.RUNG:
                    return "pause"
                return "prune" if self.book.should_prune(live.number) else "go"
            case "attribute":
                self.book.attribute(live.number, said["key"], said["value"])
            case "end":
                if live.outcome is None or said.get("state") == "failed":
                    live.outcome = said
            case _:
                raise ValueError(f"unknown question {message.op}")
        return None

    def _report(self, live: Live, step: int, value: float | None, text: str) -> str:
        now = time.monotonic()
        live.meter.reported(step, now)
        if self.book.report(live.number, Report(step, float(text) if value is None else value)):
            if value is not None:
                self._valued(live, value)
                self.record.event("value", trial=live.number, step=step, value=value)
            target = self.settings.target
            if target is not None and value is not None and self.book.reaches(value, target) and self.reached is None:
                self.reached, self._reached_value = live.number, value
        if live.until is not None and step >= live.until and live.why is None:
            live.why, live.asked_s = Why.RUNG, now
        return "pause" if live.why is Why.RUNG else "go"

    def _valued(self, live: Live, value: float) -> None:
        live.value = value
        if self.best is None or self.book.better(value, self.best["value"]):
            self.best = {"trial": live.number, "value": value}

    def _beat(self, live: Live, message: Message) -> None:
        said = message.said
        if message.rank == 0:
            live.sender = message.sender
            if live.why not in (None, Why.RUNG):  # it was told before it could hear
                self._desk.tell_to_stop(message.sender)
        if message.rank != 0 or "steps" not in said:
            return
        now = time.monotonic()
        known = live.meter.total is not None
        live.meter.beat(said["steps"], said["total"], said["resumable"], said["batch"], now)
        if live.first_steps is None:
            live.first_steps = live.meter.steps
        elif live.resize_from_s is not None and live.meter.steps > live.first_steps and live.why is None:
            self.profile.saw_resize(now - live.resize_from_s)
            live.resize_from_s = None
        if live.meter.steps > live.steps_at_crash:
            live.crashes = 0
        self._changed |= not known
        self._changed |= self._estimates.learn(live)

    def _ended(self, ended: Ended) -> None:
        live = self.lives[ended.run[0]]
        now = time.monotonic()
        live.ran_s += now - live.started_s
        why, outcome, live.why, live.outcome, live.sender = live.why, live.outcome, None, None, None
        width = live.grant.width if live.grant is not None else Fraction(1)
        mates = self._mates(live)
        live.process, live.at, live.grant = None, (), None
        if why is not Why.RESIZE:
            live.resize_from_s = None
        live.meter.stretch(None)
        self._shared_anew()
        self._changed = True
        self.record.event("end", trial=live.number, run=ended.run[1], why=_why(why, outcome, ended.code))
        if self.reached == live.number and self._reached_value is not None:
            self._over(live, End.COMPLETE, self._reached_value)
        elif outcome is not None and outcome["state"] != "paused":
            self._outcome(live, outcome, width, mates)
        elif why is Why.TIME:
            self._fail(live, f"it ran for more than {self.settings.time_limit_s:g} s (--time-limit)")
        elif why is Why.RUNG or (outcome is not None and live.until is not None and why is None):
            live.stage = Stage.AT_RUNG
            self._allocator.leave(live.name)
        elif why is None:
            self._crashed(live, ended.code)

    def _outcome(self, live: Live, outcome: dict[str, Any], width: Fraction, mates: int) -> None:
        if outcome["state"] == "pruned":
            self._over(live, End.PRUNED)
        elif outcome["state"] == "complete":
            value = outcome.get("value")
            if isinstance(value, dict):
                value = value.get(self.settings.metric or "", value)
            if (number := finite(value)) is None:
                self._fail(live, f"its objective returned {value!r}, which is no finite number")
            else:
                self._valued(live, number)
                self._over(live, End.COMPLETE, number)
        elif outcome.get("kind") == "memory" and width < 1:
            self._too_many(live, max(mates, round(1 / width)))
        else:
            self._fail(live, str(outcome.get("text")))

    def _too_many(self, live: Live, trials: int) -> None:
        """Memory did not do for so many on one GPU: fewer from now on, and this one once more."""
        self.profile.did_not_fit(trials)
        self._say(
            f"trial {live.number} ran out of memory as one of {trials} on a GPU: {self.profile.packed} from now on"
        )
        self._allocator.pack_no_more_than(self.profile.packed or 1)
        self._again(live)

    def _crashed(self, live: Live, code: int) -> None:
        live.crashes += 1
        live.steps_at_crash = live.meter.steps
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if live.crashes >= _MOST_CRASHES:
            self._fail(live, f"its process ended by {how}, {_MOST_CRASHES} times without progress")
            return
        self._say(f"trial {live.number}: its process ended by {how}; it goes on from its last checkpoint")
        self._again(live)

    def _again(self, live: Live) -> None:
        self._allocator.leave(live.name)
        live.stage = Stage.WAITING
        self._submit([live])

    def _fail(self, live: Live, reason: str) -> None:
        log = self.record.trial_folder(live.number) / "log"
        self._say(f"trial {live.number} failed: {reason} (its output: {log})")
        self.book.attribute(live.number, "hadar:failure", reason)
        self._over(live, End.FAIL)
        self._failures += 1
        if self._failures >= _MOST_FAILURES and not self._completed_any:
            raise HadarError(f"the first {self._failures} trials have failed, the last one with: {reason}")

    def _over(self, live: Live, end: End, value: float | None = None) -> None:
        self.book.tell(live.number, end, value)
        live.stage = Stage.ENDED
        self._completed_any |= end is not End.FAIL
        self._allocator.leave(live.name)
        self._allocator.withdraw(live.name)
        self.record.event("over", trial=live.number, state=str(end), value=live.value)
        target = self.settings.target
        if end is End.COMPLETE and target is not None and value is not None and self.book.reaches(value, target):
            self.reached = live.number

    @property
    def closing(self) -> bool:
        """Whether the present group's deadline has passed."""
        return self.current is not None and self.current.late

    def left_s(self, live: Live) -> float | None:
        """Seconds until a trial that runs is at its rung or over, as it runs now; None if nothing tells."""
        left, rate = live.meter.left(live.until), live.meter.rate
        return None if left is None or not rate else left / rate

    def expected_s(self) -> float | None:
        """Seconds until the present group is over, as the GPUs could be filled at best; None if nothing tells."""
        group = self.current
        if group is None or group.to_come or not any(live.active for live in group.members):
            return None
        if not self._estimates.refresh(group.members, self._allocator):
            return None
        pool = self._allocator.pool
        trials = [self._estimates.trial(live, group.members) for live in group.members if live.active]
        return lower_bound_s(trials, pool, self._allocator.limits)

    def finish(self, number: int, end: End) -> None:
        """A trial at its rung goes no further, by the word of the algorithm."""
        live = self.lives.setdefault(number, Live(number))
        if live.stage is not Stage.ENDED:
            self._over(live, end)

    # --- what goes out

    def _feed(self) -> None:
        """As many trials at a time as there are parts of GPUs, if it pays to share them."""
        group = self.current
        assert group is not None
        while group.to_come and group.new is not None:
            busy = sum(live.active for live in group.members)
            if busy >= self.sites.count * self._estimates.packing(self._allocator.limits):
                return
            number = group.new()
            if number is None:
                group.to_come = 0
                return
            group.to_come -= 1
            self._submit([group.submit(number)])

    def _submit(self, lives: list[Live]) -> None:
        group = self.current
        assert group is not None
        now = time.monotonic()
        self._estimates.refresh(group.members, self._allocator)
        trials = [self._estimates.trial(live, group.members) for live in lives]
        self._allocator.submit(trials, now, group.deadline_s)

    def _reconcile(self) -> None:
        """What runs becomes what the allocator says."""
        group = self.current
        assert group is not None
        now = time.monotonic()
        if self._changed:
            self._changed = False
            self._allocator.resize_s = self.profile.resize_s
            if self._allocator.waiting:
                self._submit([])
        for run in self._allocator.start(now):
            self.lives[int(run.trial.trial_id)].stage = Stage.RUNNING
        if not group.to_come and self._estimates.refresh(group.members, self._allocator):
            fixed = {live.name for live in group.members if not self._settled(live, now)}
            for run, anew in self._allocator.resize(now, fixed):
                live = self.lives[int(run.trial.trial_id)]
                if anew:
                    self._ask_to_end(live, Why.RESIZE)
                else:
                    live.grant = run.grant
        for name in list(self._allocator.running):
            live = self.lives[int(name)]
            if live.process is None and live.stage is Stage.RUNNING and self._free(live):
                self._launch(live)

    def _settled(self, live: Live, now: float) -> bool:
        """Whether a trial may be resized: it resumes, how fast it goes as it is has been seen, and the start of this
        run is not most of what it has cost."""
        long_enough = now - live.started_s > _REST * self.profile.resize_s
        return live.meter.resumable and live.process is not None and live.meter.rate is not None and long_enough

    def _free(self, live: Live) -> bool:
        """Whether nobody is on its GPUs but who will share them; and whether a GPU's first trial has run long enough
        alone to tell what it costs to have another one beside it."""
        wanted = self._allocator.gpus.places(live.name)
        width = self._allocator.running[live.name].grant.width
        for other in self.lives.values():
            if other is live or other.process is None or not set(other.at) & set(wanted):
                continue
            stays = other.name in self._allocator.running and self._allocator.gpus.places(other.name) == wanted
            if width >= 1 or not stays or other.why is Why.RESIZE:
                return False
            unmeasured = not self.profile.alphas and (1, 1) not in other.meter.rates
            if unmeasured and time.monotonic() - other.started_s < _SOLO_S:
                return False
        return True

    def _launch(self, live: Live) -> None:
        run = self._allocator.running[live.name]
        places = self._allocator.gpus.places(live.name)
        site = self.sites[run.grant.gpu_type]
        folder = self.record.trial_folder(live.number)
        folder.mkdir(parents=True, exist_ok=True)
        live.run = _next_run(folder)
        world = max(1, int(run.grant.width))
        gpus = tuple(site.gpus[index] for _, index in places)
        share = None
        if self._allocator.limits.packed > 1 and world == 1:
            share = str(self._sockets / f"gpu{gpus[0]}")
        specs = [
            Spec(
                self._desk.address, self._desk.server_key, self._desk.token, live.number, live.run,
                str(self.settings.file), self.settings.function, str(folder), gpus, site.gpu_type, world,
                rank if site.node is None else None, share,
                str(self._meet / f"hadar-meet-{self._desk.token[:16]}-{live.number}-{live.run}"),
            )
            for rank in range(world if site.node is None else 1)
        ]  # fmt: skip
        if site.node is not None and world > 1:
            specs *= world
        if live.resize_from_s is None and self._warm:  # the first start costs as much, but for the save
            live.resize_from_s = time.monotonic()
        live.process, live.at, live.grant = (live.number, live.run), places, run.grant
        live.started_s, live.why, live.outcome = time.monotonic(), None, None
        live.sender, live.step, live.first_steps = None, None, None
        self._launcher.start(live.process, site, specs, folder / "log")
        self.record.event(
            "start", trial=live.number, run=live.run, width=str(run.grant.width), type=site.gpu_type,
            gpus=[f"{site.name}:{gpu}" for gpu in gpus],
        )  # fmt: skip
        self._shared_anew()

    def _shared_anew(self) -> None:
        """Tell the meters who shares a GPU with whom, from now on."""
        for live in self.lives.values():
            if live.process is not None and live.grant is not None:
                live.meter.stretch((max(1, int(live.grant.width)), self._mates(live)))

    def _mates(self, live: Live) -> int:
        """Trials on its GPU, itself among them."""
        return sum(1 for other in self.lives.values() if other.process is not None and set(other.at) & set(live.at))

    def _ask_to_end(self, live: Live, why: Why) -> None:
        if live.process is None or live.why is not None:
            return
        live.why, live.asked_s = why, time.monotonic()
        if why is Why.RESIZE:
            live.resize_from_s = live.asked_s
            self.resizes += 1
        if live.sender is not None:
            self._desk.tell_to_stop(live.sender)

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._ticked_s < TICK_S:
            return
        self._ticked_s = now
        self.stop_asked |= self.record.stop_requested
        limit_s, group = self.settings.time_limit_s, self.current
        for live in [live for live in self.lives.values() if live.process is not None]:
            if limit_s is not None and live.running_s() > limit_s:
                live.why = None if live.why is not Why.TIME else live.why
                self._ask_to_end(live, Why.TIME)
            if live.why is not None and now - live.asked_s > (5.0 if live.why is Why.TIME else _GRACE_S):
                assert live.process is not None
                self._launcher.kill(live.process, live.step)
        if group is not None and group.late:
            self._deadline(group)
        if now - self._looked_s >= _LOOK_S:
            self._look()

    def _deadline(self, group: Group) -> None:
        """Who is not done is as if at its rung."""
        group.to_come = 0
        for live in group.members:
            if live.process is not None:
                self._ask_to_end(live, Why.RUNG)
            elif live.active:
                live.stage = Stage.AT_RUNG
                self._allocator.withdraw(live.name)
                self._allocator.leave(live.name)

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        if self.settings.look is not None:
            self.settings.look(self)

    def wind_down(self) -> None:
        """All trials save and end; none is left as if it ran. What the storage does not take is left for ``resume``."""
        for live in self.lives.values():
            self._ask_to_end(live, Why.STOP)
            if live.why is not Why.STOP:
                live.asked_s = time.monotonic()
        until = time.monotonic() + _GRACE_S
        while any(live.process is not None for live in self.lives.values()):
            with contextlib.suppress(HadarError):
                self._hear()
            if time.monotonic() > until + _END_S:
                break  # a node that does not answer; its processes hear nobody any more, and end
            if time.monotonic() > until:
                for live in self.lives.values():
                    if live.process is not None:
                        self._launcher.kill(live.process, live.step)
        with contextlib.suppress(HadarError):
            for live in self.lives.values():
                if live.stage is not Stage.ENDED:
                    self.book.lay_down(live.number)

    def close(self) -> None:
        """No process is left."""
        self._desk.close()
        with contextlib.suppress(OSError):
            for file in self._sockets.iterdir():
                file.unlink()
            self._sockets.rmdir()


def _next_run(folder: Path) -> int:
    """How often the trial was started before, by any tuner; its checkpoints of a later run count first."""
    file = folder / "runs"
    try:
        run = int(file.read_text())
    except (OSError, ValueError):
        run = 0
    file.write_text(f"{run + 1}\n")
    return run


def _why(why: Why | None, outcome: dict[str, Any] | None, code: int) -> str:
    if outcome is not None and outcome["state"] != "paused":
        return str(outcome["state"])
    return why.name.lower() if why is not None else "paused" if outcome is not None else f"code {code}"
