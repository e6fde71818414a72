"""What follows from how a trial's processes have ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from slurm_hadar.errors import HadarError
from slurm_hadar.tuning.executor.launch import Ended
from slurm_hadar.tuning.executor.live import Live, Stage, Why
from slurm_hadar.tuning.executor.state import State
from slurm_hadar.tuning.study.book import End, finite
from slurm_hadar.tuning.study.record import last_line, saved_step

__all__ = ["Ends"]

_MOST_CRASHES = 3
_MOST_FAILURES = 10


class Ends:
    """Of trials that end well, fail, crash, or were told to end."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._failures = 0
        self._succeeded = False

    def ended(self, ended: Ended) -> None:
        """All processes of a run are over. Raises HadarError where nothing but failures was seen."""
        state, live = self._state, self._state.lives[ended.run[0]]
        now = time.monotonic()
        live.ran_s += now - live.started_s
        why, outcome, live.why, live.outcome, live.sender = live.why, live.outcome, None, None, None
        width = live.grant.width if live.grant is not None else Fraction(1)
        mates = state.mates(live)
        live.process, live.at, live.grant = None, (), None
        if outcome is None and why in (Why.RESIZE, Why.RUNG, Why.STOP):
            self._was_saved(live)
        if why is not Why.RESIZE:
            live.resize_from_s = None
        live.meter.stretch(None)
        state.shared_anew()
        state.changed = True
        state.record.event("end", trial=live.number, run=ended.run[1], why=_why(why, outcome, ended.code))
        if state.reached == live.number and state.reached_value is not None:
            self.over(live, End.COMPLETE, state.reached_value)
        elif outcome is not None and outcome["state"] != "paused":
            self._outcome(live, outcome, width, mates)
        elif why is Why.TIME:
            self._fail(live, f"it ran for more than {state.settings.time_limit_s:g} s (--time-limit)")
        elif why is Why.RUNG or (outcome is not None and live.until is not None and why is None):
            live.stage = Stage.AT_RUNG
            state.allocator.leave(live.name)
        elif why is Why.LOST:
            self.again(live)
        elif why is None:
            self._crashed(live, ended)

    def _was_saved(self, live: Live) -> None:
        """Whoever was told to end has saved; where that failed, it is said here what its own output says."""
        if not live.meter.resumable or live.first_steps is None:
            return
        folder = self._state.record.trial_folder(live.number)
        step = saved_step(folder) or 0
        if step < live.meter.steps:
            self._state.say(
                f"trial {live.number} was told to save at step {live.meter.steps} or later, and its newest checkpoint "
                f"is of step {step}: it would go on from there (its output: {folder / 'log'})"
            )

    def _outcome(self, live: Live, outcome: Mapping[str, Any], width: Fraction, mates: int) -> None:
        if outcome["state"] == "pruned":
            self.over(live, End.PRUNED)
        elif outcome["state"] == "complete":
            found = _value(outcome.get("value"), self._state.settings.metric)
            if isinstance(found, str):
                self._fail(live, f"its objective returned {found}")
            else:
                self._state.valued(live, found)
                self.over(live, End.COMPLETE, found)
        elif outcome.get("kind") == "memory" and width < 1:
            self._too_many(live, max(mates, round(1 / width)))
        else:
            self._fail(live, str(outcome.get("text")))

    def _too_many(self, live: Live, trials: int) -> None:
        """Memory did not do for so many on one GPU: fewer from now on, and this one once more."""
        profile = self._state.profile
        profile.did_not_fit(trials)
        self._state.say(
            f"trial {live.number} ran out of memory as one of {trials} on a GPU: {profile.packed} from now on"
        )
        self._state.allocator.pack_no_more_than(profile.packed or 1)
        self.again(live)

    def _crashed(self, live: Live, ended: Ended) -> None:
        live.crashes += 1
        live.steps_at_crash = live.meter.steps
        how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        if live.crashes >= _MOST_CRASHES:
            words = last_line(self._state.record.trial_folder(live.number) / "log")
            told = f"; its output ends with: {words}" if words else ""
            self._fail(live, f"{ended.whose} ended by {how}, {_MOST_CRASHES} times without progress{told}")
            return
        self._state.say(f"trial {live.number}: {ended.whose} ended by {how}; it goes on from its last checkpoint")
        self.again(live)

    def again(self, live: Live) -> None:
        """It waits once more, for any GPUs."""
        self._state.allocator.leave(live.name)
        live.stage = Stage.WAITING
        self._state.submit([live])

    def _fail(self, live: Live, reason: str) -> None:
        state = self._state
        log = state.record.trial_folder(live.number) / "log"
        state.say(f"trial {live.number} failed: {reason} (its output: {log})")
        state.book.note_failure(live.number, reason)
        self.over(live, End.FAIL)
        self._failures += 1
        if self._failures >= _MOST_FAILURES and not self._succeeded:
            raise HadarError(f"the first {self._failures} trials have failed, the last one with: {reason}")

    def over(self, live: Live, end: End, value: float | None = None) -> None:
        """A trial is finished, in the study too."""
        state = self._state
        state.book.tell(live.number, end, value)
        live.stage = Stage.ENDED
        self._succeeded |= end is not End.FAIL
        state.allocator.leave(live.name)
        state.allocator.withdraw(live.name)
        state.record.event("over", trial=live.number, state=str(end), value=live.value)
        if end is End.COMPLETE and state.hits(value):
            state.reached = live.number


def _why(why: Why | None, outcome: Mapping[str, Any] | None, code: int) -> str:
    if outcome is not None and outcome["state"] != "paused":
        return str(outcome["state"])
    return why.name.lower() if why is not None else "paused" if outcome is not None else f"code {code}"


def _value(returned: Any, metric: str | None) -> float | str:
    """The value of a trial; or what its objective returned instead, in words."""
    if isinstance(returned, dict) and metric is not None:
        if metric not in returned:
            return f"no {metric!r} (--metric), but {returned!r}"
        returned = returned[metric]
    if (number := finite(returned)) is not None:
        return number
    named = " (of several values, --metric says which)" if isinstance(returned, dict) else ""
    return f"{returned!r}, which is no finite number{named}"
