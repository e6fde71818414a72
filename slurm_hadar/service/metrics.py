"""What Prometheus may know of the controller: served by the daemon, or written to a file after each round.

Every name is defined in :class:`Metrics`, and described in docs/operations.md.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter as Tally
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    disable_created_metrics,
    write_to_textfile,
)
from prometheus_client.parser import text_string_to_metric_families

from slurm_hadar import __version__
from slurm_hadar.config import Mode
from slurm_hadar.controller.agents.reports import TURNED_AWAY
from slurm_hadar.controller.journal import WriteOutcome
from slurm_hadar.controller.loop import RoundResult
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.errors import ConfigError
from slurm_hadar.model import JobState, Plan, Snapshot
from slurm_hadar.service.scrapes import ScrapeServer
from slurm_hadar.throughput.inference import MEASURED_ERROR
from slurm_hadar.throughput.measurements import EstimateError

__all__ = ["Metrics"]

log = logging.getLogger(__name__)
_STEPS = ("read", "decide", "act", "verify")


class Metrics:
    """All figures, in a registry of their own. Methods are called by the loop; serving happens in another thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._server: ScrapeServer | None = None
        self._write_failed = False
        self._counters: dict[str, Counter] = {}
        self._labels: dict[str, tuple[str, ...]] = {}
        self._told: dict[tuple[str, tuple[str, ...]], int] = {}
        self._series: dict[Gauge, set[tuple[str, ...]]] = {}
        registry = self.registry
        disable_created_metrics()  # a series more for each counter, which no board needs
        Info("hadar_build", "Version of slurm_hadar", registry=registry).info({"version": __version__})

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            self._counters[name] = Counter(name, text, labels, registry=registry)
            self._labels[name] = labels
            return self._counters[name]

        self.mode = gauge("hadar_mode", "1 for the mode of the last round, 0 for the others", "mode")
        self.policy = gauge("hadar_policy", "1 for the policy that decides", "policy")
        self.standby = gauge("hadar_standby", "1 while another host's slurmctld acts and rounds are observed only")
        self.round_length = gauge("hadar_round_length_seconds", "controller.round_s")
        self.last_round = gauge("hadar_last_round_timestamp_seconds", "When the last round that was not skipped began")
        self.last_step = gauge("hadar_last_round_step_seconds", "How long each step of the last round took", "step")
        self.rounds = counter("hadar_rounds", "Rounds, by what became of them: done or skipped", "result")
        self.steps = counter("hadar_round_step_seconds", "Time spent in each step of all rounds", "step")
        self.changes = counter("hadar_changes", "Jobs that were started, moved or preempted", "kind")
        self.leases = counter("hadar_leases", "Start times given to waiting jobs")
        self.writes = counter("hadar_writes", "Writes to Slurm by job, and what became of them", "outcome")
        self.calls = counter("hadar_slurm_calls", "Calls to Slurm by the controller", "call")
        self.call_seconds = counter("hadar_slurm_call_seconds", "Time spent in calls to Slurm", "call")
        self.call_failures = counter("hadar_slurm_call_failures", "Calls to Slurm that failed", "call")
        self.jobs = gauge("hadar_jobs", "Jobs in the queue by state, and whether they are steered", "state", "steered")
        self.gpus = gauge("hadar_gpus", "GPUs of all nodes", "gpu_type")
        self.gpus_up = gauge("hadar_gpus_available", "GPUs of nodes that are up", "gpu_type")
        self.gpus_held = gauge("hadar_gpus_held", "GPUs that jobs hold, steered or not", "gpu_type")
        self.price = gauge("hadar_gpu_price", "Mean price of a GPU in the last plan, in the policy's units", "gpu_type")
        self.coverage = gauge("hadar_throughput_coverage_ratio", "Share of steered jobs' GPU types measured here")
        self.estimate_error = gauge(
            "hadar_estimate_error_ratio",
            "Median of |estimated / measured - 1| of speeds that were estimated first",
            "gpu_type",
        )
        self.messages = counter("hadar_channel_messages", "Reports from jobs: accepted or dropped", "result")
        self.turned_away = counter("hadar_turned_away", "What jobs or strangers sent or left and was not read", "cause")
        self.failures = counter(
            "hadar_failures", "Failures that nobody has foreseen: of a round, or on a job, then left alone", "of"
        )
        self.left_alone = gauge("hadar_jobs_left_alone", "Jobs that are left alone since something failed on them")
        self.reload_ok = gauge("hadar_config_reload_ok", "0 if the configuration was wrong when it was last read again")
        self.reloads = counter("hadar_config_reloads", "Times the configuration was read again", "result")
        self.journal_failures = counter("hadar_journal_failures", "Times the journal could not be written")
        self.audit_failures = counter("hadar_audit_failures", "Times the audit log could not be written")
        self.hooks = counter("hadar_hook_runs", "Runs of hooks.moved", "result")
        self._begin()

    def _begin(self) -> None:
        """Series that are known beforehand exist from the start, so that their first increase is seen."""
        self.reload_ok.set(1)
        for metric, labels in (
            (self.rounds, ("done", "skipped")), (self.steps, _STEPS), (self.changes, ("start", "move", "preempt")),
            (self.writes, tuple(str(w) for w in WriteOutcome if w is not WriteOutcome.SENT)),
            (self.failures, ("round", "job")), (self.reloads, ("ok", "failed")),
            (self.messages, ("accepted", "dropped")), (self.turned_away, TURNED_AWAY),
            (self.hooks, ("ok", "failed", "timeout", "dropped")),
        ):  # fmt: skip
            for label in labels:
                metric.labels(label)

    # What happened

    def called(self, name: str, seconds: float, failed: bool) -> None:
        """A call to Slurm is over."""
        self.calls.labels(name).inc()
        self.call_seconds.labels(name).inc(seconds)
        self.call_failures.labels(name).inc(1 if failed else 0)

    def wrote(self, outcomes: Tally[str], leases: int) -> None:
        """A round has written, with so many of each outcome."""
        for outcome, count in outcomes.items():
            self.writes.labels(outcome).inc(count)
        self.leases.inc(leases)

    def configured(self, policy: str, round_s: float) -> None:
        """These are in force now."""
        self._replace(self.policy, {(policy,): 1})
        self.round_length.set(round_s)

    def done(self, result: RoundResult[Observation], standby: bool) -> None:
        """A round is over."""
        record = result.record
        self.standby.set(1 if standby else 0)
        for mode in Mode:
            self.mode.labels(str(mode)).set(1 if record.mode == mode else 0)
        if result.plan is None or result.seen is None:
            self.rounds.labels("skipped").inc()
            return
        self.rounds.labels("done").inc()
        self.last_round.set(record.time)
        for step in _STEPS:
            seconds = getattr(record, f"{step}_s")
            self.last_step.labels(step).set(seconds)
            self.steps.labels(step).inc(seconds)
        if result.outcome is not None and result.outcome.acted:  # else they were planned, and not done
            for kind, count in (("start", record.starts), ("move", record.moves), ("preempt", record.preemptions)):
                self.changes.labels(kind).inc(count)
        self._cluster(result.seen.snapshot, result.plan)

    def _cluster(self, snapshot: Snapshot, plan: Plan) -> None:
        jobs = Tally((str(j.state), "yes" if j.steerable else "no") for j in snapshot.jobs)
        # an alert on none waiting needs the 0
        always = {(str(state), steered) for state in (JobState.PENDING, JobState.RUNNING) for steered in ("yes", "no")}
        self._replace(self.jobs, {key: float(jobs[key]) for key in always | jobs.keys()})
        total: Tally[str] = Tally()
        up: Tally[str] = Tally()
        held: Tally[str] = Tally()
        for node in snapshot.nodes:
            total.update(node.gpus)
            held.update(node.taken)
            if node.available:
                up.update(node.gpus)
        for job in snapshot.jobs:
            if job.steerable and job.running:  # the others' are in node.taken
                held.update(job.held.by_type)
        for gauge, counts in ((self.gpus, total), (self.gpus_up, up), (self.gpus_held, held)):
            self._replace(gauge, {(t,): counts[t] for t in total})
        prices: dict[str, list[float]] = {}
        for (_, gpu_type), price in plan.prices.items():
            prices.setdefault(gpu_type, []).append(price)
        self._replace(self.price, {(t,): statistics.fmean(p) for t, p in prices.items()})
        known = [
            s.error is not None and s.error <= MEASURED_ERROR
            for j in snapshot.steerable_jobs
            for t, s in j.speeds.items()
            if j.form.admits_type(t)
        ]
        self.coverage.set(sum(known) / len(known) if known else float("nan"))

    def estimates(self, errors: list[EstimateError]) -> None:
        """How wrong the estimates were whose truth is known."""
        by_type: dict[str, list[float]] = {}
        for error in errors:
            by_type.setdefault(error.gpu_type, []).append(abs(error.relative))
        self._replace(self.estimate_error, {(t,): statistics.median(e) for t, e in by_type.items()})

    def reloaded(self, good: bool) -> None:
        """The configuration was read again."""
        self.reload_ok.set(1 if good else 0)
        self.reloads.labels("ok" if good else "failed").inc()

    # Counters that others keep: told as they stand

    def totals(
        self,
        messages: Mapping[str, int],
        turned_away: Mapping[str, int],
        hooks: Mapping[str, int],
        failures: Mapping[str, int],
        journal_failures: int,
        audit_failures: int,
    ) -> None:
        """What channel, hooks, loop, journal and audit log have counted since the start."""
        for scope, count in failures.items():
            self._catch_up("hadar_failures", count, scope)
        for result, count in messages.items():
            self._catch_up("hadar_channel_messages", count, result)
        for cause, count in turned_away.items():
            self._catch_up("hadar_turned_away", count, cause)
        for result, count in hooks.items():
            self._catch_up("hadar_hook_runs", count, result)
        self._catch_up("hadar_journal_failures", journal_failures)
        self._catch_up("hadar_audit_failures", audit_failures)

    def _catch_up(self, name: str, count: int, *labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(count - self._told.get((name, labels), 0))
        self._told[name, labels] = count

    def _replace(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """Exactly these series, and no others any more; never none of them, as another thread may look."""
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        for labels in self._series.get(gauge, set()) - set(values):
            gauge.remove(*labels)
        self._series[gauge] = set(values)

    # Where they go

    def serve(self, listen: str) -> int:
        """Serve them at ``HOST:PORT`` until :meth:`close`; returns the port. Raises ConfigError where it cannot."""
        host, _, port = listen.rpartition(":")
        try:
            self._server = ScrapeServer(host.strip("[]"), int(port), self.registry)
        except (OSError, UnicodeError) as error:  # no name that can be looked up
            raise ConfigError(
                f"metrics.listen = {listen!r} cannot be had: {getattr(error, 'strerror', None) or error}"
            ) from None
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Serve them no more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def write(self, path: Path) -> None:
        """Write the file for node_exporter's textfile collector, whole or not at all. What fails is logged once."""
        try:
            write_to_textfile(str(path), self.registry)
            path.chmod(0o644)  # node_exporter is another user
            self._write_failed = False
        except OSError as error:
            if not self._write_failed:
                log.error("metrics.textfile: %s cannot be written: %s", path, error.strerror or error)
            self._write_failed = True

    def carry_on(self, path: Path) -> None:
        """Take over the counters of the file that the process before has left: rounds out of cron count on."""
        try:
            families = list(text_string_to_metric_families(path.read_text()))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("metrics.textfile: %s cannot be read (%s); counters begin at 0", path, error)
            return
        for sample in (s for family in families for s in family.samples):
            name = sample.name.removesuffix("_total")
            counter = self._counters.get(name)
            known = counter is not None and name != sample.name and set(sample.labels) == set(self._labels[name])
            if counter is not None and known and 0 <= sample.value < math.inf:
                (counter.labels(**sample.labels) if sample.labels else counter).inc(sample.value)
