"""The controller as a service: what is told of its rounds, and what may change while it runs."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import load
from slurm_hadar.controller import slurm_cluster
from slurm_hadar.controller.answers.told import as_given
from slurm_hadar.controller.journal.best_effort import BestEffort
from slurm_hadar.errors import SlurmUnavailable, StoreError
from slurm_hadar.messages import Report
from slurm_hadar.model import JobState
from slurm_hadar.service.service import Service
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.backend.watched import WatchedBackend
from slurm_hadar.testing.fake_slurm import FakeSlurm
from tests.service.conftest import MODEL, Site


def moved_by_lose(site: Site) -> str:
    """Two jobs of which the one on the fast node gives way; returns the id of the job that runs on the slow one."""
    job = site.slurm.submit(gpus=2, comment=f"{MODEL},lose=yes", name="train\n?")
    site.slurm.start(job, "k80-1")
    return job


class TestAudit:
    """What was done to Slurm, and by whom."""

    def test_a_start_is_told_before_and_after(self, site: Site) -> None:
        """What is asked is there before it is done; then the outcome, with the job as it was and as it is."""
        job = site.slurm.submit(gpus=2, comment=MODEL)

        with site.service() as service:
            service.round()

        start, ask, write, stop = site.audit()
        assert (start["event"], start["config"]["controller.mode"]) == ("start", "act")
        assert (ask["event"], ask["verb"], ask["words"]) == ("ask", "write", [write["command"]])
        assert (write["event"], write["job"], write["round"], write["outcome"]) == ("write", job, 1, "ok")
        assert write["command"].startswith(f"update {job} NodeList=v100-1 StartTime=now Comment=hadar:")
        assert "start v100-1" in write["why"]
        assert (write["before"]["state"], write["after"]["state"]) == ("PENDING", "RUNNING")
        assert write["after"]["nodes"] == "v100-1"
        assert stop["event"] == "stop"

    def test_leases_share_a_line(self, site: Site) -> None:
        """Forty jobs that wait for the same reason are one entry, with each one's begin time."""
        jobs = [site.slurm.submit(gpus=2, comment=MODEL) for _ in range(40)]

        with site.service("policy.name=fifo") as service:
            service.round()

        leases = [e for e in site.audit() if e["event"] == "lease"]
        told = {j: times for e in leases for j, times in e["jobs"].items()}
        waiting = [j for j in jobs if site.slurm.jobs[j].state is JobState.PENDING]
        assert set(told) == set(waiting) and len(leases) < 5
        assert all(before < after for before, after in told.values())
        assert all(e["why"] and e["command"] == "update StartTime=now+20" for e in leases)

    def test_a_refusal_is_told(self, site: Site) -> None:
        job = site.slurm.submit(gpus=2, comment=MODEL)
        site.slurm.refuse[job] = "Access/permission denied"

        with site.service() as service:
            service.round()

        (write,) = [e for e in site.audit() if e["event"] == "write"]
        assert (write["outcome"], write["detail"]) == ("refused", "Access/permission denied")

    def test_what_was_asked_stays_when_slurm_goes_away(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody knows what became of it: the question is on record."""
        site.slurm.submit(gpus=2, comment=MODEL)

        def away(*_: object) -> None:
            raise SlurmUnavailable("slurmctld does not answer")

        monkeypatch.setattr(site.slurm, "write", away)
        with site.service() as service:
            assert service.round().plan is None

        assert [e["event"] for e in site.audit()] == ["start", "ask", "stop"]

    def test_a_fault_of_the_controller_is_its_last_line(self, site: Site) -> None:
        with pytest.raises(RuntimeError), site.service():
            raise RuntimeError("boom")

        assert site.audit()[-1]["why"] == "RuntimeError: boom"


class TestHooks:
    """Who is told that a job was moved."""

    def test_a_move_is_told_with_both_ends(self, site: Site, tmp_path: Path) -> None:
        """The job's user, its old and new place, why, and when it would have ended and will."""
        job = moved_by_lose(site)
        script = tmp_path / "hook.sh"
        script.write_text(f"#!/bin/sh\nenv | grep ^HADAR_ > {tmp_path}/told\n")
        script.chmod(0o755)
        with site.service(f"hooks.moved={script}", once=True) as service:
            result = service.round()
        assert result.record.moves == 1
        told = dict(line.split("=", 1) for line in (tmp_path / "told").read_text().splitlines())
        assert (told["HADAR_JOB_ID"], told["HADAR_EVENT"], told["HADAR_USER"]) == (job, "moved", "alice")
        assert (told["HADAR_OLD"], told["HADAR_NEW"]) == ("k80-1(k80:2)", "v100-1(v100:2)")
        assert told["HADAR_JOB_NAME"] == "train??" and told["HADAR_WHY"] and told["HADAR_CLUSTER"] == "fake"
        assert float(told["HADAR_TIME"]) < float(told["HADAR_FINISH_NEW"]) < float(told["HADAR_FINISH_OLD"])

    def test_a_move_that_slurm_refused_is_not_told(self, site: Site, tmp_path: Path) -> None:
        job = moved_by_lose(site)
        site.slurm.refuse[job] = "Access/permission denied"
        with site.service(f"hooks.moved=touch {tmp_path}/told", once=True) as service:
            service.round()
        assert not (tmp_path / "told").exists()


class TestDiskFull:
    """Nothing can be written down, so nothing is done; as soon as there is room again, it is."""

    def test_rounds_go_on_and_do_nothing(
        self,
        site: Site,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        metrics_of: Callable[[Service], Callable[..., float | None]],
    ) -> None:
        """One loud line and a count; when there is room again the job starts, and all is written."""
        job = site.slurm.submit(gpus=2, comment=MODEL)
        with site.service() as service, caplog.at_level(logging.INFO):
            journal = service._assembly.parts.journal  # noqa: SLF001 a service keeps it to itself
            with monkeypatch.context() as patched:

                def full() -> None:
                    raise StoreError("cannot write the journal journal.db: database or disk is full", passes=True)

                patched.setattr(journal, "transaction", full)
                patched.setattr(service._assembly.trainer, "check", lambda _now: full())  # noqa: SLF001 a service keeps it to itself
                for _ in range(2):
                    record = service.round().record
                    assert record.starts == 0 and record.note.startswith("skipped: cannot write the journal")
                assert site.slurm.jobs[job].nodes == ()
                assert len([m for m in caplog.messages if "JOURNAL NOT WRITTEN" in m]) == 1
                assert "disk is full" in service._status()  # noqa: SLF001 a service keeps it to itself
                assert metrics_of(service)("hadar_journal_failures_total") > 0
            assert service.round().record.starts == 1
            service.round()
            assert "the journal is written again" in caplog.text and "disk is full" not in service._status()  # noqa: SLF001 a service keeps it to itself
            assert journal.load_jobs()[job].steered

    def test_an_audit_log_without_room_is_said(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, metrics_of: Callable[[Service], Callable[..., float | None]]
    ) -> None:
        """The journal has the changes too: they are made, and the gap is loud."""
        site.slurm.submit(gpus=2, comment=MODEL)
        with site.service() as service:
            with monkeypatch.context() as patched:
                patched.setattr("slurm_hadar.service.audit.os.write", _no_space)
                assert service.round().record.starts == 1
                assert "No space left" in service._status()  # noqa: SLF001 a service keeps it to itself
                assert metrics_of(service)("hadar_audit_failures_total") > 0
            service.round()

    def test_other_faults_are_not_swallowed(self) -> None:
        best_effort = BestEffort()
        with pytest.raises(StoreError, match="no such table"), best_effort():
            raise StoreError("cannot read the journal: no such table")
        with pytest.raises(sqlite3.OperationalError), best_effort():
            raise sqlite3.OperationalError("no such table")
        assert best_effort.failures == 0


def _no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_long_wait_for_a_checkpoint_pets_the_watchdog(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that does not answer keeps the round busy; systemd hears that the loop is alive all the time."""
    alive = []
    job = site.slurm.submit(gpus=2, comment=f"{MODEL},ckpt=yes")
    site.slurm.start(job, "k80-1")
    with site.service("jobs.ack_timeout_s=1") as service:
        site.slurm.vouch(job)
        service._assembly.parts.book.ingest(  # noqa: SLF001 a service keeps it to itself
            Report("report", job, 0, 1, "a" * 64, time.time(), "k80-1", resumable=True, steps_per_s=2.0, step="1.0")
        )
        monkeypatch.setattr(service._notifier, "alive", lambda: alive.append(time.monotonic()))  # noqa: SLF001 a service keeps it to itself
        result = service.round()
    assert result.record.moves == 0 and site.slurm.signals
    assert len(alive) > 10


def test_pauses_pet_the_watchdog(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between rounds too, however long they are: a controller that has nothing to do is not hung."""
    alive = []
    monkeypatch.setattr(slurm_cluster, "_IDLE_S", 0.01)
    with site.service("controller.round_s=1", "controller.event_round_s=0") as service:
        monkeypatch.setattr(service._notifier, "alive", lambda: alive.append(1))  # noqa: SLF001 a service keeps it to itself
        cluster: Any = service._assembly.controller._cluster  # noqa: SLF001 a service keeps it to itself
        service._assembly.parts.book.event.clear()  # noqa: SLF001 a service keeps it to itself
        cluster._began = time.monotonic()  # noqa: SLF001 a service keeps it to itself
        cluster.pause()
    assert len(alive) > 10


def test_a_watchdog_shorter_than_slurm_takes_is_said(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent")
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    with caplog.at_level(logging.WARNING), site.service():
        pass
    assert "WatchdogSec=60 is too short: a question to Slurm may take 90 s" in caplog.text


def test_a_watched_backend_answers_as_the_one_inside() -> None:
    """Every call goes through, also those that are not watched."""

    class Nobody:
        def __init__(self) -> None:
            self.calls: list[tuple[str, bool]] = []

        def asking(self, verb: str, words: list[str]) -> None:
            self.calls.append((f"asking {verb} {words}", False))

        def called(self, name: str, _seconds: float, failed: bool) -> None:
            self.calls.append((name, failed))

    inner, nobody = FakeSlurm({"v100-1": ("v100", 2)}), Nobody()
    watched = WatchedBackend(inner, nobody)
    assert (watched.version(), watched.cluster_name(), watched.identity(), watched.name) == (
        "22.05.8",
        "fake",
        "fake",
        "fake",
    )
    assert watched.topology() == "" and watched.daemons() == () and watched.read_jobs() == () and watched.read().nodes
    assert list(watched.each_job()) == []
    assert watched.write([]) == []
    watched.signal(["1.0"], "USR2")
    watched.cancel([])
    inner.away = True
    with pytest.raises(SlurmUnavailable):
        watched.read()
    watched.close()
    assert inner.signals == [("1.0", "USR2")]
    assert nobody.calls == [
        ("topology", False),
        ("daemons", False),
        ("read_jobs", False),
        ("read", False),
        ("read_jobs", False),
        ("asking signal ['USR2 to 1.0']", False),
        ("signal", False),
        ("asking cancel []", False),
        ("cancel", False),
        ("read", True),
    ]


def test_nothing_of_a_backend_is_lost_by_watching_it() -> None:
    """A method that is not passed on would answer with a default: once nobody compared the clocks any more."""
    asked = {name for name, what in vars(Backend).items() if callable(what) and not name.startswith("_")}

    assert asked <= set(vars(WatchedBackend))


def test_who_looks_looks_as_the_controller_was_told(site: Any) -> None:
    """``hadar explain`` by the same settings, without being told them; a controller that is told nothing says so."""
    site.service("guard.min_run_s=5").__exit__(None, None, None)
    asker = load(site.file, [f"controller.state_dir={site.state}"])
    assert as_given(asker).guard.min_run_s == 5.0

    site.service("guard.min_run_s=9").__exit__(None, None, None)
    assert as_given(asker).guard.min_run_s == 9.0
    assert as_given(load(site.file, [f"controller.state_dir={site.folder}"])).guard.min_run_s == 300.0


def test_who_looks_looks_by_the_file_that_the_controller_was_told_of(site: Any, tmp_path: Path) -> None:
    """Also once it has read that file again."""
    own = tmp_path / "own.toml"
    own.write_text("")
    asker = load(own, [f"controller.state_dir={site.state}"])
    site.file.write_text("[guard]\nmax_stretch = 20.0\n")
    with site.service() as service:
        assert as_given(asker).guard.max_stretch == 20.0
        assert (
            as_given(load(own, [f"controller.state_dir={site.state}", "guard.max_stretch=7"])).guard.max_stretch == 7.0
        )
        site.file.write_text("[guard]\nmax_stretch = 30.0\n")
        service.reload_soon()
        service.idle()
        assert as_given(asker).guard.max_stretch == 30.0
