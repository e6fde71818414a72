"""What slurm.conf says is not that of the day on which the controller began."""

from __future__ import annotations

from pathlib import Path

from slurm_hadar.slurm.backend.cli import CliBackend


def test_a_changed_configuration_is_noticed(tmp_path: Path) -> None:
    """At no cost: the number of the next job, which each round asks for, comes with all of it."""
    conf, scontrol = tmp_path / "conf", tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\ncat {conf}\n")
    scontrol.chmod(0o755)
    backend = CliBackend(env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    before, after = (f"NEXT_JOB_ID = 7\nPreemptType = preempt/{by}\n" for by in ("none", "partition_prio"))
    conf.write_text(before)
    assert backend.config_text() == before
    conf.write_text(after)
    assert backend.next_job_id() == 7 and backend.config_text() == after
