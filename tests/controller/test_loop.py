"""Whole rounds on a Slurm in memory."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.loop import RoundResult
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.errors import SlurmParseError, SlurmUnavailable
from slurm_hadar.model import JobState, Placement
from tests.controller.scripted import MODEL, Scripted, eligible_in, report


def test_a_waiting_job_is_started_where_planned(bench: Any) -> None:
    """One round places a job on the planned node, verified by reading back."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)

    result = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()

    assert b.slurm.jobs[job].nodes == ("v100-1",)
    assert (result.record.starts, result.record.failed) == (1, 0)
    assert [e["kind"] for e in b.journal.history(job) if "kind" in e] == ["start"]


def test_jobs_that_wait_get_leases_in_one_command(bench: Any) -> None:
    """What shall wait becomes ineligible for two rounds, never held, with one comma list."""
    b = bench()
    jobs = [b.slurm.submit(gpus=1, comment=MODEL) for _ in range(5)]

    b.new_controller(policy=Scripted()).run_round()

    assert all(b.slurm.jobs[j].priority == 100 for j in jobs)
    assert all(15 < eligible_in(b, j) < 25 for j in jobs)
    (batch,) = b.slurm.batches
    assert len(batch) == 1 and set(batch[0].job_ids) == set(jobs)


def test_leases_are_not_renewed_too_early(bench: Any) -> None:
    """A round that changes nothing writes nothing."""
    b = bench()
    b.slurm.submit(gpus=1, comment=MODEL)
    controller = b.new_controller(policy=Scripted())
    controller.run_round()

    controller.run_round()

    assert len(b.slurm.batches) == 1


def test_observe_and_advise_write_nothing(bench: Any) -> None:
    """Only mode act may change anything; the other modes record what they would do."""
    for mode in ("observe", "advise"):
        b = bench(None, f"controller.mode={mode}")
        job = b.slurm.submit(gpus=1, comment=MODEL)

        result = b.controller.run_round()

        assert b.slurm.batches == []
        assert result.record.starts == 1 and b.journal.history(job)


def test_partition_modes(bench: Any) -> None:
    """Jobs of a partition that is not in mode act are pinned and left alone."""
    b = bench(None, "controller.mode=observe", "partitions.gpu.mode=act")
    other = b.slurm.submit(gpus=1, comment=MODEL, reason="BeginTime", eligible=time.time() + 50, restarts=1)

    b.new_controller(policy=Scripted()).run_round()

    assert b.slurm.batches == []
    assert b.journal.wait(other) == {"round": 1, "tier": "pinned", "why": "partition all is in mode observe"}


def test_a_move_goes_by_checkpoint_requeue_place(bench: Any) -> None:
    """A running job that saves by itself is requeued and placed anew."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL + ",ckpt=yes")
    b.slurm.start(job, "k80-1")

    result = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()

    assert b.slurm.jobs[job].nodes == ("v100-1",) and b.slurm.jobs[job].restarts == 1
    assert result.record.moves == 1
    verbs = [w.verb for batch in b.slurm.batches for w in batch]
    assert verbs == ["requeue", "update"]
    assert ("StartTime", "now") in b.slurm.batches[1][0].fields


def test_a_move_to_a_node_of_before_lets_the_second_pass(bench: Any) -> None:
    """A job restarted on a node in the second of its kill there would be refused and fail."""
    b = bench({f"v100-{i}": ("v100", 1) for i in (1, 2, 3)})
    job = b.slurm.submit(gpus=1, nodes=2, comment=MODEL + ",ckpt=yes")
    b.slurm.start(job, "v100-1", "v100-2")

    result = b.new_controller(policy=Scripted(j1={"v100-2": {"v100": 1}, "v100-3": {"v100": 1}})).run_round()

    assert b.slurm.jobs[job].nodes == ("v100-2", "v100-3") and result.record.failed == 0
    assert ("StartTime", "now+2") in b.slurm.batches[1][0].fields


@pytest.mark.parametrize("refusal", [{}, {"1": "Job is no longer pending execution"}], ids=["taken", "too late"])
def test_a_start_that_slurm_does_not_notice_is_nudged(bench: Any, refusal: Any) -> None:
    """A begin time that passes with nothing else going on is brought to Slurm's notice, once; told if that was vain."""
    b = bench({"v100-1": ("v100", 2)})
    job = b.slurm.submit(gpus=2, comment=MODEL)
    write = b.slurm.write

    def sleepy(writes: Any) -> Any:
        b.slurm.stuck = {} if b.slurm.batches else {job: "BeginTime"}
        b.slurm.refuse = refusal if b.slurm.batches else {}
        return write(writes)

    b.slurm.write = sleepy

    result = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()

    assert b.slurm.jobs[job].nodes == ("v100-1",)
    assert [len(batch) for batch in b.slurm.batches] == [1, 1] and result.record.failed == 0
    told = [e["detail"] for e in b.journal.history(job) if e.get("command") == f"update {job} StartTime=now"]
    assert told == ([f"needless: {why}" for why in refusal.values()] or [""])


def test_a_preempted_job_is_leased_and_freed_of_its_node_list(bench: Any) -> None:
    """A job that is stopped may start anywhere by itself should the controller die."""
    # no lease runs out before it is looked at, and who has run for milliseconds may be stopped, however long the first
    # round took
    b = bench(None, "controller.round_s=30", "guard.max_stretch=0")
    job = b.slurm.submit(gpus=2, comment=MODEL + ",ckpt=yes")
    controller = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}}))
    controller.run_round()

    b.new_controller(policy=Scripted()).run_round()

    assert b.slurm.jobs[job].state is JobState.PENDING
    assert b.slurm.jobs[job].req_nodes == () and eligible_in(b, job) > 10


def test_a_refused_placement_is_undone_and_avoided(bench: Any) -> None:
    """A node that vanished between reading and writing: the job gets its own shape back and other nodes are tried."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.lost = {"v100-1"}

    controller = b.controller
    result = controller.run_round()

    assert result.record.failed >= 1
    outcomes = [(e["outcome"], e["detail"]) for e in b.journal.history(job) if "command" in e]
    assert ("refused", "Invalid node name specified") in outcomes
    controller.run_round()

    assert b.slurm.jobs[job].nodes == ("k80-1",)


def test_bad_constraints_are_undone_at_once(bench: Any) -> None:
    """A write that Slurm takes but will not carry out is undone, journalled and counted."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.stuck[job] = "BadConstraints"

    result = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()

    outcomes = [e["outcome"] for e in b.journal.history(job) if "command" in e]
    assert outcomes == ["ok", "ineffective", "undone"]
    assert b.slurm.jobs[job].req_nodes == () and result.record.failed == 2


def test_after_too_many_failed_writes_it_stops_acting(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The circuit breaker leaves everything to Slurm for a while, says so, and acts again by itself."""
    b = bench(None, "guard.max_failed_writes=2")
    for _ in range(3):
        b.slurm.submit(gpus=1, comment=MODEL)
    b.slurm.refuse = {str(i): "Requested operation is presently disabled" for i in (1, 2, 3)}
    controller = b.new_controller(policy=Scripted())
    controller.run_round()
    written = len(b.slurm.batches)

    result = controller.run_round()

    assert len(b.slurm.batches) == written
    assert "3 writes in a row were refused" in result.record.note
    b.slurm.refuse = {}
    for clock in (time.time, time.monotonic):
        monkeypatch.setattr(time, clock.__name__, lambda clock=clock: clock() + 3.0)
    assert controller.run_round().record.note == "" and len(b.slurm.batches) > written


def test_jobs_of_others_are_left_alone_after_the_first_refusal(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Denied is not failed: told once in the log, never tried again, and what may be changed still is."""
    b = bench(None, "guard.max_failed_writes=2")
    theirs = [b.slurm.submit(gpus=1, comment=MODEL) for _ in range(3)]
    ours = b.slurm.submit(gpus=1, comment=MODEL)
    b.slurm.refuse = dict.fromkeys(theirs, "Invalid user id")
    controller = b.new_controller(policy=Scripted(j4={"k80-1": {"k80": 1}}))
    controller.run_round()
    written = len(b.slurm.batches)

    result = controller.run_round()

    assert len(b.slurm.batches) == written and result.record.note == ""
    assert b.slurm.jobs[ours].nodes == ("k80-1",)
    assert b.journal.wait(theirs[0])["why"] == "is not this controller's to change (Invalid user id)"
    assert len([r for r in caplog.records if "not this controller's" in r.message]) == 1


def test_slurm_away_in_the_middle_forgets_no_node_list_of_ours(bench: Any) -> None:
    """A write that did not arrive changes nothing in the memory: the job is not taken for one that its owner tied."""
    b = bench({"v100-1": ("v100", 2)})
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.stuck[job] = "Resources"
    place = Scripted(j1={"v100-1": {"v100": 2}})
    b.new_controller("jobs.start_timeout_s=1", policy=place).run_round()
    assert b.slurm.jobs[job].req_nodes == ("v100-1",)
    write, b.slurm.write = b.slurm.write, _away
    controller = b.new_controller(policy=Scripted())
    controller.run_round()
    b.slurm.write = write

    controller.run_round()

    assert b.slurm.jobs[job].req_nodes == () and eligible_in(b, job) > 10


def _away(_writes: Any) -> None:
    raise SlurmUnavailable("slurmctld does not answer")


def test_slurm_away_touches_nothing_and_comes_back(bench: Any) -> None:
    """A round without slurmctld is skipped and recorded; the next one goes on."""
    b = bench()
    b.slurm.submit(gpus=1, comment=MODEL)
    b.slurm.away = True

    result = b.controller.run_round()

    assert result.plan is None and "skipped" in result.record.note
    b.slurm.away = False
    assert b.controller.run_round().plan is not None


def test_nonsense_from_slurm_skips_the_round(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer cut short is never acted upon."""
    b = bench()
    b.slurm.submit(gpus=1, comment=MODEL)

    def cut() -> None:
        raise SlurmParseError("squeue output is cut short in record 1 at field State")

    monkeypatch.setattr(b.slurm, "read", cut)

    assert "cut short" in b.controller.run_round().record.note
    assert b.slurm.batches == []


def test_attained_service_counts_once(bench: Any) -> None:
    """GPU-seconds are booked from the start of the run, whoever looks and how often."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.start(job, "v100-1")
    b.slurm.jobs[job] = b.slurm.jobs[job].__class__(
        **{f: getattr(b.slurm.jobs[job], f) for f in b.slurm.jobs[job].__slots__} | {"start": time.time() - 100}
    )

    b.controller.run_round()
    b.controller.run_round()

    record = b.journal.load_jobs()[job]
    assert record.attained_s == pytest.approx(200, abs=5)


def test_measured_speeds_are_filed(bench: Any) -> None:
    """What a job reports becomes the speed that the next round plans with."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.start(job, "v100-1")
    b.controller.run_round()
    report(b, job, steps=10, steps_per_s=7.0)
    report(b, job, steps=20, steps_per_s=7.0)
    b.controller.run_round()

    result = b.controller.run_round()

    assert result.seen.snapshot.job[job].speeds["v100"].steps_per_s == pytest.approx(7.0)


def test_a_run_that_cannot_use_its_checkpoint_is_told_of_once(bench: Any) -> None:
    """It counts as begun anew: its steps are in no checkpoint. One that still loads has not told of its training."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.start(job, "v100-1")
    report(b, job, "saved", resumable=True, steps=50, saved_step=50)
    b.controller.run_round()
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], restarts=1)
    report(b, job, "hello", restart=1, steps=0)
    b.controller.run_round()
    assert b.journal.load_jobs()[job].saved_step == 50
    for steps in (5, 8):
        report(b, job, restart=1, resumable=True, steps=steps)
        b.controller.run_round()

    record = b.journal.load_jobs()[job]
    assert (record.lost_steps, record.saved_step, record.steps) == (45.0, None, 8)
    report(b, job, "saved", restart=1, resumable=True, steps=20, saved_step=20)
    b.controller.run_round()
    report(b, job, restart=1, resumable=True, steps=25, saved_step=10)  # another training of the same run, say
    b.controller.run_round()
    told = [e["why"] for e in b.journal.history(job) if e.get("event") == "anew"]
    assert told == ["its checkpoint at step 50 cannot be used, as its output says; 45 steps are done again"]


def test_a_restart_without_a_checkpoint_is_told_with_what_it_costs(bench: Any) -> None:
    """Only of jobs that are ours; the same restart is told once. What a script saves by itself nobody sees."""
    b = bench()
    comments = (MODEL, "", MODEL + ",ckpt=yes")
    job, other, by_itself = (b.slurm.submit(gpus=1, comment=comment) for comment in comments)
    for one, node in ((job, "v100-1"), (other, "k80-1"), (by_itself, "v100-1")):
        b.slurm.start(one, node)
    report(b, job, "report", steps=30)
    b.controller.run_round()
    for one in (job, other, by_itself):
        b.slurm.jobs[one] = replace(b.slurm.jobs[one], restarts=1)

    b.controller.run_round()
    b.new_controller().run_round()

    told = [e["why"] for e in b.journal.history(job) if e.get("event") == "restart"]
    assert told == ["run 2 from the beginning; 30 steps are done again"]
    assert not [e for e in b.journal.history(other) if "event" in e]
    (told,) = [e["why"] for e in b.journal.history(by_itself) if e.get("event") == "restart"]
    assert told == "run 2 from what its script has saved (ckpt=yes)"


def test_moves_for_the_same_reason_are_all_recorded(bench: Any) -> None:
    """To and fro between equal nodes: the reason reads the same each time, and each move is in the history."""
    b = bench({f"v100-{i}": ("v100", 1) for i in (1, 2, 3)})
    job = b.slurm.submit(gpus=1, comment=MODEL + ",ckpt=yes")
    policy = Scripted()
    controller = b.new_controller(policy=policy)
    for node in ("v100-1", "v100-2", "v100-3"):
        policy.where = {job: Placement.of({node: {"v100": 1}})}
        controller.run_round()

    history = [(e["kind"], list(e["old"]), list(e["new"])) for e in b.journal.history(job) if "kind" in e]
    assert history == [("start", [], ["v100-1"]), ("move", ["v100-1"], ["v100-2"]), ("move", ["v100-2"], ["v100-3"])]


def test_nothing_of_a_round_is_kept_until_the_next(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 jobs what one round saw is most of the controller's memory, and the next would need it once more."""
    b = bench()
    b.slurm.submit(gpus=1, comment=MODEL)
    controller = b.new_controller()

    def kept() -> int:
        return sum(isinstance(one, (RoundResult, Observation)) for one in gc.get_objects())

    before, found = kept(), []

    def pause() -> None:
        found.append(kept() - before)
        controller.stop()

    monkeypatch.setattr(controller._cluster, "pause", pause)  # noqa: SLF001 holds no public reference
    controller.run()

    assert found == [0]


def test_a_start_time_that_the_owner_sets_while_a_start_is_verified_stays(bench: Any) -> None:
    """The node list is taken back without a word about the time."""
    b = bench(None, "jobs.start_timeout_s=1")
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.stuck[job] = "Prolog"
    controller = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 2}}}))
    for _ in range(2):  # a third round in vain, and the placement is undone
        controller.run_round()
    later, look, before = float(int(time.time()) + 600), b.slurm.each_job, b.slurm.reads

    def look_after_the_owner_has_spoken() -> Any:
        if b.slurm.reads == before + 1:  # the round has looked, and has placed it
            b.slurm.defer(job, later)
        return look()

    b.slurm.each_job = look_after_the_owner_has_spoken

    result = controller.run_round()

    assert [w.outcome for w in result.outcome.log if w.job_id == job][-1] == "undone"
    assert (b.slurm.jobs[job].eligible, b.slurm.jobs[job].req_nodes) == (later, ())
