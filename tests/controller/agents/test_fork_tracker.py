"""The job tracker: who works on a forked job, how far it is, and what the copies are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.comment import JobComment
from slurm_hadar.controller.agents.fork_tracker import LEAVES_WITHIN_S, JobTracker
from slurm_hadar.forks import SLACK, PeriodPlan
from slurm_hadar.messages import Report
from slurm_hadar.model import EMPTY, Fork, Form, Job, JobState, Placement, Speed

SPEEDS = {"v100": Speed(20.0), "k80": Speed(5.0)}
PERIOD = JobComment(fork=Fork.AUTO, period_steps=100)


class Desk:
    """A tracker, the plans it has sent by copy, and the queue it looks at."""

    def __init__(self, known: Any = None, comment: JobComment = PERIOD) -> None:
        self.plans: dict[str, list[PeriodPlan]] = {}
        self.reachable = True
        self.comment = comment
        self.tracker = JobTracker(self._send, known)
        self.jobs: dict[int, Job] = {}

    def _send(self, job_id: str, plan: PeriodPlan) -> bool:
        self.plans.setdefault(job_id, []).append(plan)
        return self.reachable

    @property
    def newest(self) -> PeriodPlan:
        return max((p for plans in self.plans.values() for p in plans), key=lambda p: p.serial)

    def show(self, **on: str | None) -> None:
        """``c0="v100"``: copy 0 runs on such a node; None: it waits."""
        for name, gpu_type in on.items():
            self.jobs[int(name[1:])] = copy(int(name[1:]), gpu_type)
        self.tracker.take_in((job, self.comment) for job in self.jobs.values())

    def hear(self, index: int, kind: str = "report", **fields: Any) -> None:
        known = {"steps": 1, "total_steps": 1000, **fields}
        self.tracker.hear(Report(kind, f"7_{index}", 0, 1, "0" * 64, 1.0, "n", **known))


def copy(index: int, gpu_type: str | None) -> Job:
    placement = Placement.of({f"{gpu_type}-{index}": {gpu_type: 1}}) if gpu_type else EMPTY
    state = JobState.RUNNING if gpu_type else JobState.PENDING
    return Job(
        f"7_{index}",
        Form(1),
        state=state,
        placement=placement,
        speeds=SPEEDS,
        array_id="7",
        fork=Fork.AUTO,
        total_steps=1000.0,
    )


def test_quotas_follow_what_is_expected_and_then_what_is_measured() -> None:
    """Every working copy gets each plan; waiting ones have no share; small changes are no news."""
    desk = Desk()
    desk.show(c0="v100", c1="k80", c2=None)
    assert desk.newest.quotas == {0: 80, 1: 20} and desk.plans.keys() == {"7_0", "7_1"}
    desk.hear(1, steps_per_s=5.2)
    assert len(desk.plans["7_0"]) == 1
    desk.hear(1, steps_per_s=10.0, consolidation=3, consolidated_steps=50)
    assert desk.newest.quotas == {0: 67, 1: 33} and desk.newest.after == 3
    assert [p.serial for p in desk.plans["7_0"]] == sorted({p.serial for p in desk.plans["7_0"]})


def test_periods_in_seconds_and_by_cost() -> None:
    desk = Desk(comment=JobComment(fork=Fork.AUTO, period_s=4.0))
    desk.show(c0="v100", c1="k80")
    assert sum(desk.newest.quotas.values()) == int(SLACK * 4 * 25) and desk.newest.period_s == 4.0
    desk = Desk(comment=JobComment(fork=Fork.AUTO))
    desk.show(c0="v100")
    desk.hear(0, steps_per_s=20.0, consolidate_s=0.6)
    assert desk.newest.quotas == {0: int(SLACK * 40 * 20)}, "0.6 s are 1.5 % of 40 s"


@pytest.mark.parametrize("how", ["bye", "vanished", "requeued", "preempted"])
def test_a_copy_that_is_gone_is_left_out_at_once(how: str) -> None:
    """Its quota goes to those that are left."""
    desk = Desk()
    desk.show(c0="v100", c1="k80")
    desk.hear(1, consolidation=4, consolidated_steps=80)
    if how == "bye":
        desk.hear(0, "bye", exit_code=137)
    elif how == "vanished":
        del desk.jobs[0]
        desk.show()
    else:
        desk.show(c0=None)
    assert desk.newest.quotas == {1: 100} and desk.newest.after == 4


def test_a_new_copy_is_in_the_next_plan_when_it_speaks() -> None:
    """A hello comes before the next look at Slurm."""
    desk = Desk()
    desk.show(c0="v100", c1=None)
    desk.hear(1, "hello")
    assert desk.newest.quotas.keys() == {0, 1}


def test_steps_count_when_they_are_consolidated() -> None:
    """All copies, waiting ones too, show the steps of the job; word of an older consolidation changes nothing."""
    desk = Desk()
    desk.show(c0="v100", c1="k80", c2=None)
    desk.hear(0, steps=500, consolidation=5, consolidated_steps=320)
    desk.hear(1, steps=400, consolidation=4, consolidated_steps=250)
    shown = [desk.tracker.with_progress(job) for job in desk.jobs.values()]
    assert {(j.done_steps, j.total_steps, j.pinned) for j in shown} == {(320.0, 1000.0, None)}


def test_the_other_copies_end_with_the_job() -> None:
    """Those that wait are cancelled at once, those that run after a while; never the one that ends the script."""
    desk = Desk()
    desk.show(c0="v100", c1="k80", c2=None)
    desk.hear(1, consolidation=9, consolidated_steps=1000, closes=True)
    now = desk.tracker.get("7").done_at
    assert desk.tracker.to_cancel(now).keys() == {"7_2"}
    desk.show(c0="v100", c1=None)
    assert desk.tracker.to_cancel(now + LEAVES_WITHIN_S + 1).keys() == {"7_0", "7_2"}, "not 1, though it waits"
    assert "are done" in desk.tracker.with_progress(desk.jobs[0]).pinned


def test_what_a_script_does_after_its_program_is_left_to_it() -> None:
    """Until Slurm puts that copy back into the queue."""
    desk = Desk()
    desk.show(c0="v100", c1="k80")
    desk.hear(1, consolidation=9, consolidated_steps=1000, closes=True)
    later = desk.tracker.get("7").done_at + LEAVES_WITHIN_S + 1
    desk.hear(0, "bye", exit_code=0)
    assert not desk.tracker.to_cancel(later)
    desk.show(c0="v100", c1="k80")
    assert not desk.tracker.to_cancel(later) and desk.tracker.get("7").working == [1]
    desk.show(c0=None, c1="k80")
    assert desk.tracker.to_cancel(later).keys() == {"7_0"}


def test_a_restarted_tracker_goes_on() -> None:
    """With what was kept; and without it, from the next report."""
    first = Desk()
    first.show(c0="v100", c1=None)
    first.hear(0, consolidation=5, consolidated_steps=320)
    for known in (first.tracker.state(), None):
        second = Desk(known)
        second.show(c0="v100", c1=None)
        if known is None:
            assert second.tracker.with_progress(second.jobs[1]).done_steps == 0
            second.hear(0, consolidation=6, consolidated_steps=400)
        assert second.tracker.with_progress(second.jobs[1]).done_steps == (320 if known else 400)
        assert second.newest.serial > 0


def test_a_restarted_tracker_ends_the_other_copies() -> None:
    """Though the copy that ends the script has said so before the restart, and is gone."""
    first = Desk()
    first.show(c0="v100", c1="k80", c2=None)
    first.hear(0, consolidation=9, consolidated_steps=1000, closes=True)
    second = Desk(first.tracker.state())
    second.show(c1="k80", c2=None)
    now = second.tracker.get("7").done_at
    assert second.tracker.to_cancel(now).keys() == {"7_2"}
    assert second.tracker.to_cancel(now + LEAVES_WITHIN_S + 1).keys() == {"7_1", "7_2"}


def test_reports_of_strangers_are_nothing_to_it() -> None:
    """A job that no look has shown as forked, however its id looks."""
    desk = Desk()
    desk.hear(0, consolidation=5, consolidated_steps=320, closes=True)
    assert desk.tracker.get("7") is None and not desk.plans
    desk.show(c0="v100")
    desk.jobs.clear()
    desk.show()
    assert desk.tracker.get("7") is None, "forgotten with its last copy"


def test_unreachable_copies_are_told_again() -> None:
    desk = Desk()
    desk.reachable = False
    desk.show(c0="v100")
    desk.reachable = True
    desk.hear(0, steps_per_s=20.0)
    assert len(desk.plans["7_0"]) == 2


def test_copies_that_contradict_each_other_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Reports are users' words, and may come by the thousand."""
    desk = Desk()
    desk.show(c0="v100", c1="k80")
    for number in range(2000):
        desk.hear(number % 2, consolidation=3, consolidated_steps=500 - number % 2)
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("job 7: consolidation 3 has 499 steps where 500 were heard of before")
    assert len(told) < 50


EVENTS = st.lists(
    st.tuples(st.sampled_from(["run", "wait", "gone", "report", "bye"]), st.integers(0, 4), st.floats(0, 50)),
    max_size=40,
)


@given(EVENTS)
def test_plans_name_those_that_work_and_share_all(events: Any) -> None:
    """Whatever happens: each plan shares a whole period among the copies that work, and serials grow."""
    desk = Desk()
    desk.show(c0="v100")
    for what, index, rate in events:
        if what == "report" and index in desk.jobs:
            desk.hear(index, steps_per_s=rate)
        elif what == "bye" and index in desk.jobs:
            desk.hear(index, "bye", exit_code=0)
        elif what == "gone":
            desk.jobs.pop(index, None)
            desk.show()
        elif what in ("run", "wait"):
            desk.jobs[index] = replace(copy(index, "k80" if what == "run" else None))
            desk.show()
        parent = desk.tracker.get("7")
        if parent is not None and parent.working and parent.sent is not None:
            assert parent.sent.quotas.keys() == set(parent.working)
            assert sum(parent.sent.quotas.values()) == 100
