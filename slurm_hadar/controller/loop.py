"""The controller: one round after the other, each of them observe, estimate, decide, guard, act, verify, record."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Generic

from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.answers.expectation import Peek
from slurm_hadar.controller.callbacks import LoopCallbacks
from slurm_hadar.controller.cluster import Cluster, Outcome, SeenT
from slurm_hadar.controller.journal import RoundRecord
from slurm_hadar.controller.record.recorder import Recorder
from slurm_hadar.controller.safety.culprits import find_culprits
from slurm_hadar.controller.safety.guard import Change, ChangeKind, changes_of, limit
from slurm_hadar.controller.safety.quarantine import UNFORESEEN, Quarantine
from slurm_hadar.errors import HadarError, PolicyError, SlurmError, SlurmUnavailable, StoreError, whereabouts
from slurm_hadar.model import Plan, Snapshot
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.toolkit.contained import as_it_is
from slurm_hadar.units import counted

__all__ = ["Controller", "RoundResult"]

log = logging.getLogger(__name__)
_FORESEE_SHARE = 0.02  # of a round
_FORESEE_REST = 15  # times what looking ahead took, where events bring rounds forward
_FORESEE_LITTLE_S = 0.2  # nothing to rest from


@dataclass(frozen=True)
class RoundResult(Generic[SeenT]):
    """One finished round: its record, plan and changes. ``plan`` is None if it was skipped, and ``number`` 0 if not
    even that could be written down; ``seen`` is what the cluster's ``observe`` gave."""

    number: int
    record: RoundRecord
    seen: SeenT | None = None
    plan: Plan | None = None
    changes: tuple[Change, ...] = ()
    outcome: Outcome | None = None


class _Stopped(BaseException):
    """The end was asked for while the policy was at work, which may never be done."""


class Controller(Generic[SeenT]):
    """Steers one cluster. Everything it talks to is passed in, so the simulator and the tests use the same class.

    Parameters
    ----------
    cluster: what is steered. policy: who decides. config: limits and modes. recorder: who keeps what was done.
    on_round: called after each round (live tables, tests). callbacks: told of what it does.
    """

    def __init__(
        self,
        cluster: Cluster[SeenT],
        policy: Policy,
        config: Config,
        recorder: Recorder[SeenT],
        on_round: Callable[[RoundResult[SeenT]], None] | None = None,
        callbacks: LoopCallbacks | None = None,
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._config = config
        self._recorder = recorder
        self._on_round = on_round
        self._callbacks = callbacks or LoopCallbacks()
        self._memory = recorder.recall()
        self._peek: Peek | None = None
        self._rests_until = 0.0
        self._policy_in: int | None = None  # the thread in which the policy is at work
        #: Rounds, and looks ahead, that were given up for failures that nobody has foreseen; for the metrics.
        self.failures = 0

    @property
    def isolated(self) -> Quarantine:
        """The jobs that are left alone since something failed on them."""
        return self._cluster.isolated

    @property
    def policy(self) -> str:
        """The name of the policy that decides."""
        return self._policy.name

    def stop(self) -> None:
        """End after the current write; a policy at work is not waited for. Safe to call from a signal handler."""
        self._cluster.stop()
        if self._policy_in == threading.get_ident():
            self._policy_in = None  # asked once more, the end waits for what is written down of this one
            raise _Stopped

    def reconfigure(self, config: Config, policy: Policy) -> None:
        """Go on by another configuration and policy from the next round on. Between rounds only."""
        self._config, self._policy = config, policy
        self._cluster.reconfigure(config)
        self._recorder.reconfigure(policy.name, config.policy.params, config.controller.keep_days * 86400)
        self._memory = self._recorder.recall()

    def run(self) -> None:
        """Rounds until :meth:`stop`. slurmctld being away is waited out; nothing is touched meanwhile."""
        while not self._cluster.stopped:
            self._play()
            self._look_ahead()
            self._cluster.pause()
        self._cluster.hold_off()

    def _play(self) -> None:
        """A function of its own, since what a round saw must not outlive it: with many jobs that is most of the memory,
        and looking ahead, or the next round, would need it twice."""
        result = self._tried_round()
        if self._on_round is not None:
            self._on_round(result)

    def run_round(self) -> RoundResult[SeenT]:
        """One round. Returns instead of raising when Slurm is away or its answer is not understood, and when the disk
        is full: what cannot be written down is not done. A failure that nobody has foreseen gives this round up, and
        is told; the next one begins afresh. Raises StoreError if the journal is broken."""
        result = self._tried_round()
        self._look_ahead()
        return result

    def _look_ahead(self) -> None:
        """Work out when the jobs that wait will start, not after every round where that takes long and rounds come
        often; a failure costs no more than that."""
        peek, self._peek = self._peek, None
        began = time.monotonic()
        if peek is None or began < self._rests_until:
            return
        try:
            self._recorder.foresee(peek, self._config, self._foresee_s)
        except (*UNFORESEEN, PolicyError) as error:
            self._tell_failure("looking ahead", error)
        took_s = time.monotonic() - began
        self._rests_until = began + (_FORESEE_REST * took_s if took_s > _FORESEE_LITTLE_S else 0.0)

    def _tell_failure(self, what: str, error: BaseException) -> str:
        self.failures += 1
        why = f"{type(error).__name__}: {error} at {whereabouts(error)}"
        log.error("%s given up: %s; please report this", what, why, extra={"event": "failed"})
        log.debug("what was given up", exc_info=error)
        return why

    def _tried_round(self) -> RoundResult[SeenT]:
        mode = self._config.boldest
        try:
            try:
                standby = self._cluster.standby()
                return self._round(Mode.OBSERVE if standby else mode, standby)
            except UNFORESEEN as error:
                why = self._tell_failure("round", error)
                record = self._skipped(mode, HadarError(f"the controller failed: {why}"))
                return RoundResult(self._recorder.begin(record), record)
            except _Stopped:
                record = self._skipped(mode, HadarError(f"the end was asked for while {self._policy.name} decided"))
                return RoundResult(self._recorder.begin(record), record)
            except SlurmError as error:
                kind = "away" if isinstance(error, SlurmUnavailable) else "unclear"
                log.warning("round skipped, Slurm is %s: %s", kind, error, extra={"event": "skipped"})
                record = self._skipped(mode, error)
                return RoundResult(self._recorder.begin(record), record)
        except StoreError as error:
            if not error.passes:
                raise
            log.warning("round given up, since nothing can be written down: %s", error, extra={"event": "skipped"})
            return RoundResult(0, self._skipped(mode, error))

    def _skipped(self, mode: Mode, error: HadarError) -> RoundRecord:
        return RoundRecord(
            self._cluster.now(),
            mode,
            self._policy.name,
            note=f"skipped: {error}",
            round_s=self._config.controller.round_s,
            skipped=True,
        )

    def _round(self, mode: Mode, standby: str = "") -> RoundResult[SeenT]:
        seen = self._cluster.observe(acting_only=mode is Mode.ACT)
        broken = self._cluster.circuit_open() if mode is Mode.ACT else ""
        snapshot = replace(seen.snapshot, memory=self._memory) if self._memory else seen.snapshot
        began = time.monotonic()
        snapshot, plan, fault = self._decide(snapshot)
        if snapshot.jobs is not seen.snapshot.jobs:  # some of them are left alone
            seen = seen.with_snapshot(snapshot)
        decide_s = time.monotonic() - began
        changes = limit(snapshot, changes_of(snapshot, plan), self._config)
        record = RoundRecord(
            snapshot.time,
            mode,
            self._policy.name,
            len(snapshot.nodes),
            len(snapshot.jobs),
            len(snapshot.steerable_jobs),
            sum(1 for j in snapshot.jobs if j.running),
            read_s=seen.read_s,
            decide_s=decide_s,
            note=fault or broken or standby,
            round_s=self._config.controller.round_s,
        )
        number = self._recorder.begin(record)
        self._callbacks.began(number)
        self._recorder.planned(number, snapshot, plan, changes)
        if mode is Mode.ACT and not (broken or plan.abstains):
            outcome = self._cluster.carry_out(number, seen, changes)
        else:
            self._cluster.hold_off()
            outcome = Outcome(changes, acted=False)
        record = self._conclude(number, record, seen, outcome)
        if self._foresee_s > 0 and plan.waits and not plan.abstains:
            self._peek = Peek(replace(snapshot, memory=plan.memory), self._policy, seen.stays)
        return RoundResult(number, record, seen, plan, tuple(outcome.changes), outcome)

    @property
    def _foresee_s(self) -> float:
        settings = self._config.controller
        return min(settings.foresee_s, _FORESEE_SHARE * settings.round_s)

    def _decide(self, snapshot: Snapshot) -> tuple[Snapshot, Plan, str]:
        """The policy's plan, and what was wrong. Jobs that it fails on are left alone from now on: the snapshot is
        then one without them. If it fails without any of them too, it abstains."""
        plan, fault = self._tried(snapshot)
        note = ""
        if fault is not None:
            culprits = find_culprits(snapshot, lambda s: self._tried(s)[1] is not None)
            if culprits:
                for job_id in culprits:
                    self.isolated.put(job_id, f"policy {self._policy.name}", PolicyError(fault))
                snapshot = snapshot.without(
                    dict.fromkeys(culprits, f"policy {self._policy.name} failed on it: {fault}")
                )
                note = f"{fault}; left alone: {', '.join(culprits)}"
                plan, fault = self._tried(snapshot)
        if plan is None or fault is not None:
            log.error("%s", fault)
            return snapshot, as_it_is(snapshot, self._policy.name, fault or ""), fault or ""
        self._memory = plan.memory
        self._recorder.keep(plan.memory)
        return snapshot, plan, note

    def _tried(self, snapshot: Snapshot) -> tuple[Plan | None, str | None]:
        """The policy's plan, or what is wrong with it or with its making."""
        try:
            plan = self._allocate(snapshot)
            problems = check_plan(snapshot, plan)
        except PolicyError as error:
            return None, f"{error}; nothing was done"
        except UNFORESEEN as error:
            return None, f"policy {self._policy.name} broke its contract, nothing was done: {error!r}"
        if not problems:
            return plan, None
        return plan, (
            f"policy {self._policy.name} broke its contract, nothing was done: {problems[0]} ({len(problems)} in all)"
        )

    def _allocate(self, snapshot: Snapshot) -> Plan:
        """The policy's plan. One that fails gets a second chance without what it remembers, which a damaged journal may
        have spoilt in a way that only the policy can find."""
        self._policy_in = threading.get_ident()
        try:
            return self._policy.allocate(snapshot)
        except PolicyError as error:
            if not snapshot.memory:
                raise
            log.warning("%s; its memory is dropped", error)
            return self._policy.allocate(replace(snapshot, memory={}))
        finally:
            self._policy_in = None

    def _conclude(self, number: int, record: RoundRecord, seen: SeenT, outcome: Outcome) -> RoundRecord:
        record = replace(
            record,
            starts=outcome.count(ChangeKind.START),
            moves=outcome.count(ChangeKind.MOVE),
            preemptions=outcome.count(ChangeKind.PREEMPT),
            leases=outcome.leases,
            writes=len(outcome.log),
            failed=outcome.failed,
            act_s=outcome.act_s,
            verify_s=outcome.verify_s,
        )
        self._recorder.conclude(number, record, seen, outcome)
        self._cluster.conclude(seen)
        if log.isEnabledFor(logging.INFO):
            self._say(number, record)
        return record

    def _say(self, number: int, record: RoundRecord) -> None:
        log.info(
            "round %d (%s, %s): %s, %d steered, %d running; %d start, %d move, %d stop, %d leases, %d failed; "
            "read %.3f s, decide %.3f s, act %.3f s, verify %.3f s",
            number,
            record.mode,
            record.policy,
            counted(record.jobs, "job"),
            record.steered,
            record.running,
            record.starts,
            record.moves,
            record.preemptions,
            record.leases,
            record.failed,
            record.read_s,
            record.decide_s,
            record.act_s,
            record.verify_s,
            extra={"event": "round", "figures": {"round": number, **asdict(record)}},
        )
