"""Starts, moves and ends the runs of trials, as the allocator decides."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_hadar.errors import HadarError, StoreError
from slurm_hadar.tuning.executor.channel import Channel
from slurm_hadar.tuning.executor.launch import Launcher
from slurm_hadar.tuning.executor.live import Live, Stage, Why
from slurm_hadar.tuning.executor.site import Site
from slurm_hadar.tuning.executor.state import State
from slurm_hadar.tuning.study.record import RUNS
from slurm_hadar.tuning.trial.wire import SCRATCH, Spec

__all__ = ["Runs"]

_GRACE_S = 120.0  # a large model takes long to save
_TIME_GRACE_S = 5.0  # of one whose time is over
_LINGER_S = 30.0  # of one whose objective has returned: a thread of its own may still write something
_SOLO_S = 15.0
_REST = 3.0
_WEIGH_S = 1.0


class Runs:
    """``resizes``: trials that were started anew for another width."""

    def __init__(self, state: State, channel: Channel, launcher: Launcher) -> None:
        self._state, self._channel, self._launcher = state, channel, launcher
        self.resizes = 0
        self._weighed_s = -_WEIGH_S
        self._scratch = Path(f"{SCRATCH}{os.getpid()}-{channel.token[:8]}")

    def reconcile(self, warm: bool) -> None:
        """What runs becomes what the allocator says; at once where something has changed, else now and then, since
        trials come nearer to their ends. ``warm``: a start costs what it always will."""
        state, group, now = self._state, self._state.group, time.monotonic()
        assert group is not None
        allocator = state.allocator
        if not state.changed and now - self._weighed_s < _WEIGH_S:
            return
        self._weighed_s = now
        self._bring_up_to_date()
        for run in allocator.start():
            state.lives[int(run.trial.trial_id)].stage = Stage.RUNNING
        if not allocator.waiting and not group.to_come and state.estimates.refresh(group.members, allocator):
            fixed = {live.name for live in group.members if not self._settled(live, now)}
            for run, anew in allocator.resize(fixed):
                live = state.lives[int(run.trial.trial_id)]
                if anew:
                    self.ask_to_end(live, Why.RESIZE)
                else:
                    live.grant = run.grant
        for name in list(allocator.running):
            live = state.lives[int(name)]
            if live.process is None and live.stage is Stage.RUNNING and self._free(live):
                self._launch(live, warm)

    def _bring_up_to_date(self) -> None:
        """What the allocator knows of those that run, if somebody waits, who starts by when they end."""
        state, group, allocator = self._state, self._state.group, self._state.allocator
        assert group is not None
        if state.changed:
            allocator.resize_s = state.profile.resize_s
        if allocator.waiting and state.changed:
            state.submit([])
        elif allocator.waiting:
            state.estimates.refresh(group.members, allocator)
        state.changed = False

    def _settled(self, live: Live, now: float) -> bool:
        """Whether a trial may be resized: it resumes, how fast it goes as it is has been seen, and the start of this
        run is not most of what it has cost."""
        long_enough = now - live.started_s > _REST * self._state.profile.resize_s
        return live.meter.resumable and live.process is not None and live.meter.rate is not None and long_enough

    def _free(self, live: Live) -> bool:
        """Whether nobody is on its GPUs but who will share them; and whether the trial that has run longest has done so
        long enough alone to tell what it costs to have another one beside it."""
        state, allocator = self._state, self._state.allocator
        first = min(state.running(), key=lambda other: other.started_s, default=None)
        wanted = allocator.gpus.places(live.name)
        width = allocator.running[live.name].grant.width
        for other in state.running():
            if other is live or not set(other.at) & set(wanted):
                continue
            stays = other.name in allocator.running and allocator.gpus.places(other.name) == wanted
            if width >= 1 or not stays or other.why is Why.RESIZE:
                return False
            unmeasured = not state.profile.alphas and (1, 1) not in other.meter.rates
            if other is first and unmeasured and time.monotonic() - other.started_s < _SOLO_S:
                return False
        return True

    def _launch(self, live: Live, warm: bool) -> None:
        state = self._state
        run = state.allocator.running[live.name]
        places = state.allocator.gpus.places(live.name)
        site = state.sites[run.grant.gpu_type]
        folder = state.record.trial_folder(live.number)
        folder.mkdir(parents=True, exist_ok=True)
        live.run = _next_run(folder)
        specs = self._specs(live, site, tuple(site.gpus[index] for _, index in places), folder)
        if live.resize_from_s is None and warm:  # the first start costs as much, but for the save
            live.resize_from_s = time.monotonic()
        live.process, live.at, live.grant = (live.number, live.run), places, run.grant
        live.started_s, live.why, live.outcome, live.overdue = time.monotonic(), None, None, False
        live.sender, live.step, live.first_steps = None, None, None
        live.saves_asked, live.saves_answered, live.asked = 0, 0, set()
        try:
            self._launcher.start(live.process, site, specs, folder / "log")
        except OSError as error:
            live.process, live.at, live.grant = None, (), None  # nobody is to wait for its end
            raise HadarError(f"trial {live.number} cannot be started: {error.strerror or error}") from error
        state.record.event(
            "start", trial=live.number, run=live.run, width=str(run.grant.width), type=site.gpu_type,
            gpus=[f"{site.name}:{gpu}" for gpu in specs[0].gpus],
        )  # fmt: skip
        state.shared_anew()

    def _specs(self, live: Live, site: Site, gpus: tuple[int, ...], folder: Path) -> list[Spec]:
        """One for each process."""
        settings, channel, world = self._state.settings, self._channel, len(gpus)
        share = str(self._scratch / f"gpu{gpus[0]}") if self._state.allocator.limits.packed > 1 and world == 1 else None
        return [
            Spec(
                channel.address, channel.server_key, channel.token, live.number, live.run, str(settings.file),
                settings.function, str(folder), gpus, site.gpu_type, world, rank if site.node is None else None, share,
                str(self._meeting(live)),
            )
            for rank in range(world)
        ]  # fmt: skip

    def _meeting(self, live: Live) -> Path:
        """Where the ranks of a run find each other."""
        return self._scratch / f"meet-{live.number}-{live.run}"

    def clear(self, live: Live) -> None:
        """Remove what the processes of a run leave that were killed."""
        meeting = self._meeting(live)
        with contextlib.suppress(OSError):
            meeting.unlink()
        for pages in meeting.parent.glob(f"{meeting.name}-*"):
            shutil.rmtree(pages, ignore_errors=True)

    def ask_to_end(self, live: Live, why: Why) -> None:
        """It saves at its next boundary, and ends."""
        if live.process is None or live.why is not None:
            return
        live.why, live.asked_s = why, time.monotonic()
        if why is Why.RESIZE:
            live.resize_from_s = live.asked_s
            self.resizes += 1
        if live.sender is not None:
            self._channel.tell_to_stop(live.sender)

    def enforce(self) -> None:
        """Whose time is over is told so; who was told to end, or has told its result, and has not ended in good time,
        is killed."""
        limit_s, now = self._state.settings.time_limit_s, time.monotonic()
        for live in self._state.running():
            if limit_s is not None and live.running_s() > limit_s:
                live.why = None if live.why is not Why.TIME else live.why
                self.ask_to_end(live, Why.TIME)
            if live.why is not None and now - live.asked_s > (_TIME_GRACE_S if live.why is Why.TIME else _GRACE_S):
                self.kill(live)
            elif live.why is None and live.outcome is not None and now - live.outcome_s > _LINGER_S:
                self._end_overdue(live)

    def _end_overdue(self, live: Live) -> None:
        """What it has told counts, however its process ends; killing it may take more than one try."""
        if not live.overdue:
            live.overdue = True
            self._state.say(
                f"trial {live.number}: its objective ended {_LINGER_S:g} s ago, and its process goes on (a thread of "
                "its own, or an atexit function): killed; the trial's result counts"
            )
        self.kill(live)

    def lose(self, lives: Sequence[Live]) -> None:
        """Their GPUs are not there any more: they wait for others, from their last checkpoints."""
        for live in lives:
            if live.process is None:
                live.stage = Stage.WAITING
                self._state.submit([live])
            else:
                live.why, live.asked_s = Why.LOST, time.monotonic()
                self._launcher.kill(live.process, None)  # the node may not answer any more

    def kill(self, live: Live) -> None:
        """At once."""
        assert live.process is not None
        self._launcher.kill(live.process, live.step)

    def stop_all(self) -> float:
        """All save and end; until when (of time.monotonic()) that may take."""
        for live in self._state.lives.values():
            self.ask_to_end(live, Why.STOP)
            if live.why is not Why.STOP:
                live.asked_s = time.monotonic()
        return time.monotonic() + _GRACE_S

    def close(self) -> None:
        """Remove the folder of sockets and meetings on this node; on others the next tuner does."""
        shutil.rmtree(self._scratch, ignore_errors=True)


def _next_run(folder: Path) -> int:
    """How often the trial was started before, by any tuner; its checkpoints of a later run count first. What is there
    stays where it cannot be written: a trial that began to count anew would find its own checkpoints too new for it.
    Raises StoreError."""
    file, new = folder / RUNS, folder / f".{RUNS}"
    try:
        run = int(file.read_text())
    except (OSError, ValueError):
        run = 0
    try:
        new.write_text(f"{run + 1}\n")
        new.replace(file)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from None
    return run
