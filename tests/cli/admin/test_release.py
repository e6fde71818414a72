"""What ``hadar release`` says of what Slurm refused."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from slurm_hadar.cli.admin import release
from slurm_hadar.comment import with_asked
from slurm_hadar.controller.act.release import Released, release_all
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.state_dir import JOURNAL
from slurm_hadar.errors import StoreError
from slurm_hadar.slurm.state import Write, WriteResult
from slurm_hadar.testing.fake_slurm import FakeSlurm


def test_jobs_that_are_not_the_users_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"10": "Invalid user id", "9": "Invalid user id", "11": "Job is pending execution", "12": None}
    results = [WriteResult(job_id, Write("update", (job_id,)), error) for job_id, error in errors.items()]
    monkeypatch.setattr(release, "choose", lambda *_: SimpleNamespace(identity=lambda: "here"))

    def answer(*_: Any) -> Released:
        return Released(results, [], [])

    monkeypatch.setattr(release, "release_all", answer)
    done = CliRunner().invoke(release.release, ["--set", f"controller.state_dir={tmp_path}"], standalone_mode=False)

    assert (done.return_value, done.stdout) == (1, "1 job released, 3 refused:\n")
    assert done.stderr.splitlines() == [
        "  9, 10: not this user's to change; their owners can release them, or an operator of Slurm",
        "  11: Job is pending execution",
    ]


def test_a_journal_that_cannot_be_written_hides_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm has done it: that is told, and stands in the audit log."""

    def full(*_: Any) -> None:
        raise StoreError("cannot write the journal: database or disk is full", passes=True)

    slurm = FakeSlurm({"v100-1": ("v100", 2)})
    job = slurm.submit()
    slurm.jobs[job] = replace(slurm.jobs[job], eligible=time.time() + 600.0)
    monkeypatch.setattr(slurm, "identity", lambda: "here", raising=False)
    monkeypatch.setattr(release, "choose", lambda *_: slurm)
    monkeypatch.setattr(Journal, "save_jobs", full)
    done = CliRunner().invoke(release.release, ["--set", f"controller.state_dir={tmp_path}"], standalone_mode=False)

    assert (done.return_value, done.stdout) == (1, "1 job released\n")
    assert done.stderr == "the journal does not know of it: cannot write the journal: database or disk is full\n"
    assert slurm.jobs[job].eligible <= time.time() and f'"{job}"' in (tmp_path / "audit.jsonl").read_text()


def test_jobs_of_another_controller_are_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that share a cluster by users; by name all can be released, as can what was steered before the scope was
    made smaller."""
    slurm = FakeSlurm({"v100-1": ("v100", 2)})
    mine, theirs, once = (slurm.submit(user=user) for user in ("ada", "bob", "eve"))
    for job in (mine, theirs, once):
        slurm.jobs[job] = replace(slurm.jobs[job], eligible=time.time() + 600.0)
    monkeypatch.setattr(slurm, "identity", lambda: "here", raising=False)
    monkeypatch.setattr(release, "choose", lambda *_: slurm)
    with contextlib.closing(Journal(tmp_path / JOURNAL)) as journal:
        journal.save_jobs([JobRecord(once, slurm.jobs[once].submit or 0.0, steered=True)])
    scope = ["--set", f"controller.state_dir={tmp_path}", "--set", 'controller.users=["ada"]']

    done = CliRunner().invoke(release.release, scope, standalone_mode=False)
    assert (done.return_value, done.stdout) == (0, "2 jobs released\n")
    assert done.stderr == (
        f"1 job outside this controller's scope is left as before ({theirs}). Name it to release it, too\n"
    )
    assert [slurm.jobs[job].eligible <= time.time() for job in (mine, theirs, once)] == [True, False, True]

    done = CliRunner().invoke(release.release, [theirs, *scope], standalone_mode=False)
    assert (done.return_value, done.stdout, done.stderr) == (0, "1 job released\n", "")
    assert slurm.jobs[theirs].eligible <= time.time()


def test_what_a_controller_learns_of_other_jobs_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that ends while Slurm is told: only the released jobs are written down anew."""
    slurm = FakeSlurm({"v100-1": ("v100", 2)})
    job = slurm.submit()
    slurm.jobs[job] = replace(slurm.jobs[job], eligible=time.time() + 600.0)
    write = slurm.write

    def beside_a_round(writes: list[Write]) -> list[WriteResult]:
        with contextlib.closing(Journal(tmp_path / JOURNAL)) as journal:
            journal.save_jobs([JobRecord("77", 0.0, 0, 0.0, steps=500)])
        return write(writes)

    monkeypatch.setattr(slurm, "write", beside_a_round)
    monkeypatch.setattr(slurm, "identity", lambda: "here", raising=False)
    monkeypatch.setattr(release, "choose", lambda *_: slurm)
    with contextlib.closing(Journal(tmp_path / JOURNAL)) as journal:
        journal.save_jobs(
            [JobRecord(job, slurm.jobs[job].submit or 0.0, steered=True), JobRecord("77", 0.0, 0, 0.0, steps=400)]
        )

    done = CliRunner().invoke(release.release, ["--set", f"controller.state_dir={tmp_path}"], standalone_mode=False)
    with contextlib.closing(Journal(tmp_path / JOURNAL)) as journal:
        records = journal.load_jobs()

    assert (done.return_value, done.stdout) == (0, "1 job released\n")
    assert (records[job].steered, records["77"].steps) == (False, 500)


def test_a_job_with_shards_gets_its_own_number_back_without_the_journal(tmp_path: Path) -> None:
    """It was told more, to keep it off a GPU in use; left so, it would fit on few GPUs only."""
    slurm, seal = FakeSlurm({"v100-1": ("v100", 2)}, shards=8), Seal()
    job = slurm.submit(shares="shard:8")
    shape = (2, 1, 1, 1)
    told = with_asked("hadar:", shape, seal.of(job, slurm.jobs[job].user, shape))
    later = time.time() + 600.0
    slurm.jobs[job] = replace(slurm.jobs[job], gpus=(), comment=told or "", req_nodes=("v100-1",), eligible=later)
    with contextlib.closing(Journal(tmp_path / JOURNAL)) as journal:
        release_all(slurm, journal, seal=seal)

    assert (slurm.jobs[job].shards, slurm.jobs[job].req_nodes) == (2, ())


def test_a_record_of_an_earlier_job_with_the_same_id_changes_no_other_job(tmp_path: Path) -> None:
    """Slurm began to count anew while no controller ran: whose id it is now keeps its own shape, nodes and start."""
    slurm = FakeSlurm({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    job = slurm.submit(gpus=4, comment="", user="bob", req_nodes=("v100-2",))
    slurm.jobs[job] = replace(slurm.jobs[job], eligible=time.time() + 3600.0)
    before = slurm.jobs[job].gpus, slurm.jobs[job].eligible
    with contextlib.closing(Journal(tmp_path / JOURNAL)) as journal:
        journal.save_jobs([JobRecord(job, 1000.0, 0, 1000.0, 1, steered=True, user="alice")])
        released = release_all(slurm, journal)
        records = journal.load_jobs()

    assert (released.results, slurm.jobs[job].gpus, slurm.jobs[job].eligible) == ([], *before)
    assert slurm.jobs[job].req_nodes == ("v100-2",)
    assert records[job].steered


def test_an_owners_begin_time_is_not_taken_for_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that no round has seen, as where it was submitted after the controller's end: no lease is that long."""
    slurm = FakeSlurm({"v100-1": ("v100", 2)})
    leased, own = slurm.submit(), slurm.submit()
    begin = time.time() + 86_400.0
    slurm.jobs[leased] = replace(slurm.jobs[leased], eligible=time.time() + 700.0)
    slurm.jobs[own] = replace(slurm.jobs[own], eligible=begin)
    monkeypatch.setattr(slurm, "identity", lambda: "here", raising=False)
    monkeypatch.setattr(release, "choose", lambda *_: slurm)

    done = CliRunner().invoke(release.release, ["--set", f"controller.state_dir={tmp_path}"], standalone_mode=False)
    assert (done.return_value, done.stdout) == (0, "1 job released\n")
    assert slurm.jobs[own].eligible == begin and slurm.jobs[leased].eligible <= time.time()
