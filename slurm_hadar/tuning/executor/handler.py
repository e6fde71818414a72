"""What trials ask and tell while they run, and the answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from slurm_hadar.errors import ConfigError, HadarError
from slurm_hadar.tuning.executor.channel import Channel, Message
from slurm_hadar.tuning.executor.live import Live, Why
from slurm_hadar.tuning.executor.state import State
from slurm_hadar.tuning.study.book import Report, finite

__all__ = ["MessageHandler"]


class MessageHandler:
    """Of the run that a trial has now alone; a process of an earlier one is told that nobody answers it any more."""

    def __init__(self, state: State, channel: Channel) -> None:
        self._state, self._channel = state, channel
        self.warm = False  # what is started only once is there

    def handle(self, message: Message) -> None:
        """Answer it, if it asks. Raises HadarError where that cannot be done, as where the study cannot be written."""
        live = self._state.lives.get(message.trial)
        if live is None or live.process != (message.trial, message.run):
            if message.asks:
                self._channel.say_gone(message)
            return
        if not message.asks:
            self._beat(live, message)
            return
        try:
            self._channel.answer(message, self._answer(live, message))
        except HadarError:
            self._channel.say_gone(message)  # so that it saves: the run is over
            raise
        except OSError as error:  # none of the objective's, which is to ask the next tuner
            self._channel.say_gone(message)
            raise HadarError(f"trial {live.number} cannot be answered: {error.strerror or error}") from error
        except Exception as error:  # Optuna's words for what the objective asks
            self._channel.answer(message, error=str(error))

    def _answer(self, live: Live, message: Message) -> Any:
        said, book = message.said, self._state.book
        match message.op:
            case "hello":
                live.step, self.warm = said.get("step") or live.step, True
            case "suggest":
                return self._suggest(live, said["kind"], said["name"], said["arguments"])
            case "report":
                return self._report(live, int(said["step"]), finite(said["value"]), str(said["value"]))
            case "should_prune":
                if live.why is Why.RUNG:
                    return "pause"
                return "prune" if book.should_prune(live.number) else "go"
            case "attribute":
                book.attribute(live.number, said["key"], said["value"])
            case "end":
                if _counts(said, live.outcome):
                    live.outcome, live.outcome_s = said, time.monotonic()
            case _:
                raise ValueError(f"unknown question {message.op}")
        return None

    def _suggest(self, live: Live, kind: str, name: str, arguments: dict[str, Any]) -> Any:
        """Raises ConfigError where a trial that goes on asks otherwise than it did before: the study's file has changed
        since, and its work would be lost if it failed."""
        book, settings = self._state.book, self._state.settings
        try:
            value = book.suggest(live.number, kind, name, arguments)
        except ValueError as error:
            if book.parameters(live.number) <= live.asked:
                raise
            raise ConfigError(
                f"trial {live.number} was to go on, and now asks for another {name!r} ({str(error).rstrip('.')}): "
                f"restore the search space of {settings.file} and resume, or begin a new study (--study); "
                "no trial is lost"
            ) from None
        live.asked.add(name)
        return value

    def _report(self, live: Live, step: int, value: float | None, text: str) -> str:
        state, now = self._state, time.monotonic()
        live.meter.reported(step, now)
        if state.book.report(live.number, Report(step, float(text) if value is None else value)):
            if value is not None:
                state.valued(live, value)
                state.record.event("value", trial=live.number, step=step, value=value)
            if state.hits(value) and state.reached is None:
                state.reached, state.reached_value = live.number, value
        if live.until is not None and step >= live.until and live.why is None:
            return self._at_rung(live, step, now)
        return "pause" if live.why is Why.RUNG else "go"

    def _at_rung(self, live: Live, step: int, now: float) -> str:
        """It ends there; or goes on in its process, if its course says so and nobody waits for GPUs. Then it saves all
        the same, since others may begin with a copy of it."""
        state = self._state
        assert state.group is not None
        stays = live.onward is not None and not state.allocator.waiting and not state.group.late
        until = live.onward(live.number, step) if live.onward is not None and stays else None
        if until is None:
            live.why, live.asked_s = Why.RUNG, now
            return "pause"
        live.until, state.changed = until, True
        live.saves_asked += 1
        state.record.event("onward", trial=live.number, step=step, until=until)
        return "save"

    def _beat(self, live: Live, message: Message) -> None:
        said = message.said
        if message.rank == 0:
            live.sender = message.sender
            if live.why not in (None, Why.RUNG):  # it was told before it could hear
                self._channel.tell_to_stop(message.sender)
        if message.rank != 0 or "steps" not in said:
            return
        live.saves_answered = said["answered"]
        now = time.monotonic()
        known = live.meter.total is not None
        live.meter.beat(said["steps"], said["total"], said["resumable"], said["batch"], now)
        if live.first_steps is None:
            live.first_steps = live.meter.steps
        elif live.resize_from_s is not None and live.meter.steps > live.first_steps and live.why is None:
            self._state.profile.saw_resize(now - live.resize_from_s)
            live.resize_from_s = None
        if live.meter.steps > live.steps_at_crash:
            live.crashes = 0
        self._state.changed |= not known
        self._state.changed |= self._state.estimates.learn(live)


def _counts(said: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether what a process has told of its end is the trial's outcome: of several the first that has failed, since
    the others fail of its being gone."""
    return before is None or (said.get("state") == "failed" and before.get("state") != "failed")
