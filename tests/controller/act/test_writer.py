"""What the journal is told of what Slurm was asked to do."""

from __future__ import annotations

from slurm_hadar.controller.act.writer import Writer
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import WriteOutcome
from slurm_hadar.model import JobState
from slurm_hadar.testing.fake_slurm import FakeSlurm


def test_a_job_that_is_not_ours_to_end_is_not_said_to_have_ended() -> None:
    slurm, outcome = FakeSlurm({"a": ("v100", 4)}), Outcome([])
    ours, theirs = slurm.submit(gpus=1), slurm.submit(gpus=1)
    slurm.refuse[theirs] = "Access/permission denied"

    Writer(slurm, lambda _writes: None).cancel({ours: "enough", theirs: "enough"}, outcome)

    assert {w.job_id: (w.outcome, w.detail) for w in outcome.log} == {
        ours: (WriteOutcome.OK, "enough"),
        theirs: (WriteOutcome.REFUSED, "Access/permission denied"),
    }
    assert outcome.denied == {theirs: "Access/permission denied"}
    assert slurm.jobs[theirs].state is JobState.PENDING
