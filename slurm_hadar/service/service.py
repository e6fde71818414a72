"""``hadar run`` as a service: the controller, and around it all that administrators watch it by."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from slurm_hadar import __version__
from slurm_hadar.config import Config, given
from slurm_hadar.controller.callbacks import LoopCallbacks
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.loop import RoundResult
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.setup import Assembly, assemble
from slurm_hadar.errors import HadarError, StoreError
from slurm_hadar.policies import registry
from slurm_hadar.service import logs
from slurm_hadar.service.accounts import acting_user, hook_variables, write_entries
from slurm_hadar.service.audit import AuditLog
from slurm_hadar.service.hooks import HookRunner
from slurm_hadar.service.memory import return_memory_early
from slurm_hadar.service.metrics import Metrics
from slurm_hadar.service.notify import Notifier
from slurm_hadar.service.reload import compare
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.units import counted

__all__ = ["Service"]

log = logging.getLogger(__name__)
_HOOKS_END_S = 10.0


class Service(LoopCallbacks):
    """Use as a context: building it raises the HadarError of whatever cannot be had.

    Parameters
    ----------
    config: what to run by. reread: gives the configuration anew, for :meth:`reload_soon`; raises HadarError.
    on_round: called after each round. quiet: log warnings only.
    once: rounds are begun from outside (cron): counters carry on from ``metrics.textfile``, nothing is served.
    """

    def __init__(
        self,
        config: Config,
        reread: Callable[[], Config],
        on_round: Callable[[RoundResult[Observation]], None] = lambda _: None,
        quiet: bool = False,
        once: bool = False,
    ) -> None:
        self._config, self._reread, self._on_round = config, reread, on_round
        self._quiet, self._once = quiet, once
        return_memory_early()
        self._formatter = logs.configure(config.log, quiet)
        self._notifier = Notifier()
        self._hooks = HookRunner(config.hooks)
        self._metrics = Metrics()
        self._reload_asked = False
        self._reload_fault = self._last = ""
        self._end = "asked to"
        self._assembly: Assembly = assemble(config, self._done, self, once)
        try:
            self._open()
        except BaseException:
            self._metrics.close()
            self._assembly.__exit__()
            raise

    def _open(self) -> None:
        config, assembly = self._config, self._assembly
        self._cluster = assembly.parts.backend.cluster_name()
        self._audit = AuditLog(assembly.directory, config.audit)
        self._store = ThroughputStore(assembly.parts.journal.connection)
        self._metrics.configured(assembly.controller.policy, config.controller.round_s)
        if self._once and config.metrics.textfile is not None:
            self._metrics.carry_on(config.metrics.textfile)
        if config.metrics.listen and not self._once:
            port = self._metrics.serve(config.metrics.listen)
            log.info("metrics are served at http://%s:%d/metrics", config.metrics.listen.rpartition(":")[0], port)
        longest_s = config.slurm.timeout_s * (config.slurm.retries + 1)
        if 0 < self._notifier.watchdog_s <= 1.2 * longest_s:
            log.warning(
                "WatchdogSec=%.0f is too short: a question to Slurm may take %.0f s (slurm.timeout_s, slurm.retries); "
                "raise it, else systemd ends a controller that waits",
                self._notifier.watchdog_s,
                longest_s,
            )
        for note in assembly.notes:
            log.warning("%s", note)
        self._note_given()
        self._audit.write([{"event": "start", **self._who(), "once": self._once, "config": self._settings()}])

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._end = f"{kind.__name__ if kind else ''}: {error}"
        self._notifier.stopping(f"stopping: {self._end}")
        self._metrics.close()
        if not self._once:  # a training outlives a round out of cron
            self._assembly.trainer.stop()
        # out of cron nobody else waits for them
        self._hooks.close(self._config.hooks.timeout_s if self._once else _HOOKS_END_S)
        if self._once:
            self._tell_figures()  # with those that have ended since the round
        self._audit.write([{"event": "stop", **self._who(), "why": self._end}])
        self._audit.close()
        self._assembly.__exit__()

    # What callers do

    def run(self) -> None:
        """Rounds until :meth:`stop`."""
        self._notifier.ready("first round")
        self._assembly.controller.run()

    def round(self) -> RoundResult[Observation]:
        """One round."""
        self._end = "one round was asked for"
        result = self._assembly.controller.run_round()
        self._done(result)
        return result

    def stop(self) -> None:
        """End after the current write. Safe to call from a signal handler."""
        self._notifier.stopping("ends after the current write")
        self._assembly.controller.stop()

    def reload_soon(self) -> None:
        """Read the configuration again before the next round. Safe to call from a signal handler."""
        self._reload_asked = True

    # What the controller calls

    def alive(self) -> None:
        self._notifier.alive()

    def idle(self) -> None:
        self.alive()
        if self._reload_asked:
            self._reload_asked = False
            self._reload()

    def began(self, number: int) -> None:
        self._formatter.round = number
        self.alive()

    def asking(self, verb: str, words: Sequence[str]) -> None:
        # before it is done: whoever kills us in the middle leaves a trace of what may have been done
        self._audit.write([{"event": "ask", "round": self._formatter.round, "verb": verb, "words": words}], sync=False)

    def called(self, name: str, seconds: float, failed: bool) -> None:
        self._metrics.called(name, seconds, failed)
        self.alive()

    def wrote(self, number: int, seen: Observation, outcome: Outcome) -> None:
        self._audit.write(write_entries(number, seen, outcome))
        self._metrics.wrote(Counter(w.outcome for w in outcome.log), outcome.leases)
        if self._config.hooks.moved:
            for variables in hook_variables(number, seen, outcome, self._cluster):
                self._hooks.run(variables)

    def _done(self, result: RoundResult[Observation]) -> None:
        """A round is over."""
        self._formatter.round = None
        record, assembly = result.record, self._assembly
        self._metrics.done(result, assembly.leadership.standing_by)
        try:
            self._metrics.estimates(self._store.errors())
        except StoreError as error:
            log.warning("%s", error)
        self._tell_figures()
        self._last = f"round {result.number} ({record.mode}, {record.policy}): " + (
            record.note
            if result.plan is None
            else f"{counted(record.jobs, 'job')}, {record.steered} steered, {record.running} running; "
            f"{record.starts} start, {record.moves} move, {record.preemptions} stop, {record.failed} failed"
            + (f"; {record.note}" if record.note else "")
        )
        self._notifier.status(self._status())
        self._on_round(result)

    def _tell_figures(self) -> None:
        book, metrics = self._assembly.parts.book, self._metrics
        messages = {"accepted": book.accepted, "dropped": book.dropped}
        controller, best_effort = self._assembly.controller, self._assembly.parts.best_effort
        failures = {"round": controller.failures, "job": controller.isolated.failures}
        metrics.totals(
            messages, book.turned_away, self._hooks.outcomes, failures, best_effort.failures, self._audit.failures
        )
        metrics.left_alone.set(controller.isolated.jobs)
        if self._config.metrics.textfile is not None:
            metrics.write(self._config.metrics.textfile)

    # The configuration

    def _reload(self) -> None:
        """Go by the configuration as it is now; where it is wrong, go on by that of before and say so."""
        self._notifier.reloading()
        try:
            found = compare(self._config, self._reread())
            policy = registry.get(found.config.policy.name, **found.config.policy.params)
        except HadarError as error:
            good = False
            self._reload_fault = f"configuration not reloaded, the old one goes on: {error}"
            log.error("%s", self._reload_fault, extra={"event": "config"})
            self._audit.write([{"event": "config", "fault": str(error)}])
        else:
            good = True
            self._take(found.config)
            self._note_given()
            self._assembly.controller.reconfigure(found.config, policy)
            self._reload_fault = f"needs a restart: {', '.join(found.waiting)}" if found.waiting else ""
            log.info("%s", found.words(), extra={"event": "config"})
            self._audit.write([{"event": "config", "changed": found.changed, "needs_restart": found.waiting}])
        self._metrics.reloaded(good)
        self._metrics.configured(self._assembly.controller.policy, self._config.controller.round_s)
        self._tell_figures()
        self._notifier.ready(self._status())

    def _take(self, config: Config) -> None:
        if config.log != self._config.log:
            self._formatter = logs.configure(config.log, self._quiet)
        self._config = config
        self._hooks.settings, self._audit.settings = config.hooks, config.audit

    def _note_given(self) -> None:
        with self._assembly.parts.best_effort():
            self._assembly.parts.journal.save_given(given(self._config))

    def _status(self) -> str:
        faults = (self._reload_fault, self._assembly.parts.best_effort.fault, self._audit.fault)
        return "; ".join(part for part in (self._last, *faults) if part)

    def _who(self) -> dict[str, Any]:
        return {"version": __version__, "host": socket.gethostname(), "process": os.getpid(), "user": acting_user()}

    def _settings(self) -> dict[str, Any]:
        """What differs from the defaults."""
        default = Config().flat()
        return {key: value for key, value in self._config.flat().items() if default.get(key) != value}
