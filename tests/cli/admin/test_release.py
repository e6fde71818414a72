"""What ``hadar release`` says of what Slurm refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from slurm_hadar.cli.admin import release
from slurm_hadar.controller.act.release import Released
from slurm_hadar.slurm.state import Write, WriteResult


def test_jobs_that_are_not_the_users_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"10": "Invalid user id", "9": "Invalid user id", "11": "Job is pending execution", "12": None}
    results = [WriteResult(job_id, Write("update", (job_id,)), error) for job_id, error in errors.items()]
    monkeypatch.setattr(release, "choose", lambda *_: SimpleNamespace(identity=lambda: "here"))

    def answer(*_: Any) -> Released:
        return Released(results, [])

    monkeypatch.setattr(release, "release_all", answer)
    done = CliRunner().invoke(release.release, ["--set", f"controller.state_dir={tmp_path}"], standalone_mode=False)

    assert (done.return_value, done.stdout) == (1, "1 job released, 3 refused:\n")
    assert done.stderr.splitlines() == [
        "  9, 10: not this user's to change; their owners can release them, or an operator of Slurm",
        "  11: Job is pending execution",
    ]
