"""What is learned from the reasons for which Slurm does not start a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.lessons import Lessons, keeps_back, note_unfit, of_a_known_throttle, unfit_reason
from slurm_hadar.model import JobState
from tests.controller.steering.waiting import RECORD, job


@pytest.mark.parametrize(
    ("reason", "kept"),
    [("", False), ("Resources", False), ("Priority", False), ("BeginTime", False), ("NonZeroExitCode", False),
     ("RaisedSignal:9(Killed)", False), ("QOSMaxGRESPerUser", True), ("Licenses", True), ("AssocGrpCpuLimit", True),
     ("ReqNodeNotAvail, UnavailableNodes:v100-1", True), ("JobArrayTaskLimit", True), ("SomethingNew", True)],
)  # fmt: skip
def test_reasons(reason: str, kept: bool) -> None:
    """Waiting for room or time is nothing wrong; all else is, and so are words that nobody knows yet."""
    assert keeps_back(reason) is kept


@pytest.mark.parametrize(("throttle", "known"), [(2, True), (None, False)])
def test_a_throttle_that_is_reckoned_with_is_no_news(throttle: int | None, known: bool) -> None:
    """Slurm's reason stands when a task has ended already."""
    assert of_a_known_throttle(job(throttle=throttle, array_id="9", reason="JobArrayTaskLimit")) is known
    assert not of_a_known_throttle(job(throttle=throttle, array_id="9", reason="Licenses"))


def test_lessons_are_about_the_scope_of_the_reason() -> None:
    """A user's limit is no matter of other users; a job's own trouble no matter of other jobs."""
    lessons = Lessons()
    mine, other = job(job_id="1"), job(job_id="2", user="bob")
    lessons.learn(mine, "QOSMaxGRESPerUser", 0.0, 10.0, tried=True)

    assert "QOSMaxGRESPerUser" in (lessons.reason(job(job_id="3"), 5.0) or "") and lessons.reason(other, 5.0) is None
    lessons.learn(other, "ReqNodeNotAvail", 0.0, 10.0, tried=True)
    assert lessons.reason(other, 5.0) and lessons.reason(job(job_id="4", user="bob"), 5.0) is None


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("PartitionTimeLimit", "its time limit is longer than partition all allows"),
        ("AccountNotAllowed", "account lab may not use partition all"),
        (
            "Job's account not permitted to use this partition (all allows vip not lab)",
            "account lab may not use partition all",
        ),
        ("Job's_QOS_not_permitted_to_use_this_partition_(all)", "QOS small may not be used in partition all"),
        ("AssocMaxWallDurationPerJobLimit", "its time limit is longer than account lab allows"),
    ],
)
def test_what_does_not_pass_by_itself_is_known_while_a_job_is_put_off(reason: str, why: str) -> None:
    """Until Slurm says something else; it is no matter of other jobs, and none where another partition may do."""
    lessons, one = Lessons(), job(job_id="1", partition="all", reason="Priority")
    later = replace(one, reason="BeginTime")
    assert lessons.never(one, 0.0) is lessons.never(later, 0.0) is None
    lessons.learn(one, "ReqNodeNotAvail", 0.0, 60.0, tried=True)
    assert lessons.never(later, 1.0) is None

    lessons.learn(one, reason, 2.0, 60.0, tried=False)
    never = f"cannot start as it was submitted: {why}; Slurm says {reason}"
    assert lessons.never(later, 3.0) == lessons.never(replace(one, reason="None"), 3.0) == never
    assert lessons.never(replace(one, reason=reason), 3.0) == never
    assert lessons.reason(replace(later, job_id="2"), 3.0) is lessons.never(replace(later, job_id="2"), 3.0) is None
    assert lessons.never(replace(one, partition="all,fast", reason=reason), 3.0) is None

    assert lessons.never(one, 4.0) is lessons.never(later, 4.0) is lessons.reason(one, 4.0) is None


def test_what_does_not_pass_by_itself_is_remembered_where_it_is_seen() -> None:
    """As soon as Slurm says so, tried or not."""
    lessons, one = Lessons(), job(job_id="1", partition="all", reason="InvalidQOS")

    assert lessons.never(one, 0.0) == lessons.never(one, 1.0)
    assert "QOS small is not valid for it" in (lessons.never(replace(one, reason="BeginTime"), 2.0) or "")


def test_who_is_tried_in_vain_again_lets_others_pass() -> None:
    """Once it may be the nodes' fault, and others are tried at once; after that the job waits for growing times."""
    lessons, one, record = Lessons(), job(job_id="1", reason="Priority"), JobRecord("1")
    waits = []
    now = 100.0
    for node in ("a", "b", "a", "b"):
        lessons.tried_in_vain(one, record, [node], now, 10.0)
        assert record.avoid[node] == now + 20.0
        reason = lessons.reason(one, now)
        while lessons.reason(one, now):
            now += 1.0
        waits.append(reason and now - 100.0)
        lessons.expire({"1": one})
        assert lessons.reason(one, now) is None, "a matter of its own: nobody else's turn is awaited"

    assert waits == [None, 10.0, 30.0, 70.0]
    assert lessons.reason(job(job_id="2", reason="Priority"), 101.0) is None
    lessons.forget(replace(one, start=now + 1.0))
    lessons.tried_in_vain(one, record, ["a"], now, 10.0)
    assert lessons.reason(one, now) is None, "it has run since: from the beginning"


def test_lessons_grow_only_with_tries_and_end_with_a_start() -> None:
    """The same word seen again is no new try; when one of them runs, all may."""
    lessons, one = Lessons(), job(job_id="1")
    lessons.learn(one, "QOSGrpGRES", 0.0, 10.0, tried=False)
    lessons.learn(one, "QOSGrpGRES", 5.0, 10.0, tried=False)
    assert "in 1 s" in (lessons.reason(one, 9.0) or "") and lessons.reason(one, 10.0) is None

    lessons.learn(one, "QOSGrpGRES", 10.0, 10.0, tried=True)
    assert "in 20 s" in (lessons.reason(one, 10.0) or "")
    lessons.forget(replace(one, job_id="7", start=9.0))
    assert lessons.reason(one, 10.0), "it ran before: it may be the reason"
    lessons.forget(replace(one, job_id="7", start=11.0))
    assert lessons.reason(one, 10.0) is None


def test_after_a_while_they_are_tried_in_turn() -> None:
    """One in each round: the first may wait for room for long, and must not keep the others from their try."""
    lessons = Lessons()
    jobs = {str(i): job(job_id=str(i)) for i in range(3)}
    lessons.learn(jobs["0"], "QOSMaxGRESPerUser", 0.0, 10.0, tried=True)
    tried = []
    for _ in range(5):
        lessons.expire(jobs)
        tried.append([i for i, one in jobs.items() if lessons.reason(one, 20.0) is None])

    assert tried == [["0"], ["1"], ["2"], [], ["0"]]
    lessons.expire({})
    assert lessons.reason(jobs["0"], 0.0) is None


def test_a_job_that_fits_nowhere_known_is_left_to_slurm() -> None:
    """After the second node that is unfit, for times that grow to a day; once it runs, until it is over."""
    record, waits = replace(RECORD), job(reason="BadConstraints")

    note_unfit(record, ["a1"], waits.reason, 1000.0, 10.0)
    assert unfit_reason(waits, record, 1000.0) is None and record.avoid == {"a1": 1100.0}
    note_unfit(record, ["a2"], waits.reason, 1100.0, 10.0)
    why = unfit_reason(waits, record, 1299.0)
    assert why is not None and "is left to Slurm until" in why and "a2 (BadConstraints)" in why
    assert record.avoid["a2"] == 1300.0 and unfit_reason(waits, record, 1300.0) is None
    assert unfit_reason(replace(waits, state=JobState.RUNNING), record, 9999.0) is not None
    for _ in range(20):
        note_unfit(record, ["a3"], waits.reason, 1300.0, 10.0)
    assert record.avoid["a3"] == record.unfit_until == 1300.0 + 86400.0
