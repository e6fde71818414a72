"""The controller as a service: what is told of its rounds, and what may change while it runs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import load
from slurm_hadar.controller import slurm_cluster
from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.answers.peek import as_given
from slurm_hadar.controller.journal.best_effort import BestEffort
from slurm_hadar.controller.safety.lock import ScopeLock
from slurm_hadar.errors import ConfigError, SlurmUnavailable, StoreError
from slurm_hadar.messages import Report
from slurm_hadar.model import JobState
from slurm_hadar.service.metrics import Metrics
from slurm_hadar.service.reload import NEEDS_RESTART, compare
from slurm_hadar.service.service import Service
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.backend.watched import WatchedBackend
from slurm_hadar.slurm.state import Daemon
from slurm_hadar.testing.fake_slurm import FakeSlurm

from .conftest import MODEL, Site


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


class TestReload:
    """SIGHUP, as the loop's idle moments take it."""

    def reload(self, site: Site, service: Service, text: str) -> None:
        site.file.write_text(text)
        service.reload_soon()
        service.idle()

    def test_what_can_change_changes_at_the_next_round(self, site: Site) -> None:
        """Mode, policy and guard are those of the file from the next round on."""
        job = site.slurm.submit(gpus=2, comment=MODEL)
        with site.service("controller.round_s=2") as service:
            self.reload(site, service, '[policy]\nname = "fifo"\n[partitions.all]\nmode = "observe"\n')
            result = service.round()
            assert (result.record.policy, result.record.writes) == ("fifo", 0)
            assert site.slurm.jobs[job].state is JobState.PENDING
            self.reload(site, service, '[guard]\nexempt_users = ["alice"]\n')
            result = service.round()
            assert result.record.policy == "hadar" and result.record.steered == 0
            self.reload(site, service, "")
            service.round()
        assert site.slurm.jobs[job].nodes == ("v100-1",)
        changes = [e["changed"] for e in site.audit() if e["event"] == "config"]
        assert changes[0] == {"policy.name": ["hadar", "fifo"], "partitions.all.mode": [None, "observe"]}
        assert changes[2] == {"guard.exempt_users": [["alice"], []]}

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ('[controller]\nha = "both"\n', "'primary' or 'any'"),
            ("[controller\n", "not valid TOML"),
            ('[policy]\nname = "best"\n', "best"),
            ('[policy]\nparams = {objective = "luck"}\n', "luck"),
            ("[guard]\nmax_preemption = 3\n", "unknown key guard.max_preemption"),
        ],
    )
    def test_a_wrong_one_leaves_the_old_one(
        self,
        site: Site,
        metrics_of: Callable[[Service], Callable[..., float | None]],
        caplog: pytest.LogCaptureFixture,
        text: str,
        named: str,
    ) -> None:
        """One clear line in log, status and audit log, a metric, and rounds that go on as before."""
        site.slurm.submit(gpus=2, comment=MODEL)
        with site.service() as service:
            with caplog.at_level(logging.INFO):
                self.reload(site, service, text)
            (line,) = [m for m in caplog.messages if "not reloaded" in m]
            assert named in line and "\n" not in line and "the old one goes on" in line
            assert service.round().record.starts == 1
            assert named in service._status()  # noqa: SLF001 a service keeps it to itself
            assert metrics_of(service)("hadar_config_reload_ok") == 0
            self.reload(site, service, "")
            assert "not reloaded" not in service._status() and metrics_of(service)("hadar_config_reload_ok") == 1  # noqa: SLF001 a service keeps it to itself
        assert [("fault" in e) for e in site.audit() if e["event"] == "config"] == [True, False]

    def test_what_needs_a_restart_is_named_and_stays(self, site: Site) -> None:
        """The part of the file that can be had is taken."""
        with site.service() as service:
            self.reload(site, service, '[slurm]\nbackend = "cli"\ntimeout_s = 5\n[jobs]\nlose_progress = true\n')
            assert service._config.slurm.backend == "auto" and service._config.jobs.lose_progress  # noqa: SLF001 a service keeps it to itself
            assert "needs a restart: slurm.backend, slurm.timeout_s" in service._status()  # noqa: SLF001 a service keeps it to itself

    def test_every_setting_is_live_or_named(self, site: Site) -> None:
        """The list of what needs a restart names settings that there are."""
        keys = set(site.config().flat())
        for fixed in NEEDS_RESTART:
            assert fixed in keys or any(k.startswith(f"{fixed}.") for k in keys)
        assert not compare(site.config(), site.config()).changed

    def test_a_shorter_round_shortens_the_wait_at_work(self, site: Site, poll: Callable[..., Any]) -> None:
        """The daemon that waits for a round of an hour goes on at once when a round is a second."""
        running: list[Service] = []

        def daemon() -> None:
            with Service(site.config("controller.round_s=3600"), site.config, site.rounds.append) as service:
                running.append(service)
                service.run()

        thread = threading.Thread(target=daemon)
        thread.start()
        poll(lambda: len(site.rounds) == 1)
        running[0].reload_soon()
        poll(lambda: len(site.rounds) >= 2)
        running[0].stop()
        thread.join(30)
        assert not thread.is_alive()


class TestMetrics:
    """What Prometheus sees."""

    def test_rounds_jobs_and_gpus(
        self, site: Site, metrics_of: Callable[[Service], Callable[..., float | None]]
    ) -> None:
        site.slurm.submit(gpus=2, comment=MODEL)
        site.slurm.submit(gpus=1, comment="")
        with site.service() as service:
            service.round()
            told = metrics_of(service)
            assert told("hadar_rounds_total", result="done") == 1 and told("hadar_rounds_total", result="skipped") == 0
            assert told("hadar_mode", mode="act") == 1 and told("hadar_mode", mode="observe") == 0
            assert told("hadar_policy", policy="hadar") == 1
            assert told("hadar_changes_total", kind="start") == 1 and told("hadar_writes_total", outcome="ok") == 1
            assert told("hadar_jobs", state="pending", steered="yes") == 1
            assert told("hadar_jobs", state="pending", steered="no") == 1
            assert told("hadar_gpus", gpu_type="v100") == 2 and told("hadar_gpus_held", gpu_type="v100") == 0
            assert (
                told("hadar_slurm_calls_total", call="write") == 1 and told("hadar_slurm_calls_total", call="read") == 1
            )
            assert told("hadar_throughput_coverage_ratio") == 0
            service.round()
            assert told("hadar_gpus_held", gpu_type="v100") == 2 and told("hadar_gpus_available", gpu_type="k80") == 2
            assert told("hadar_jobs", state="running", steered="yes") == 1
            assert told("hadar_jobs", state="pending", steered="yes") == 0
            assert time.time() - told("hadar_last_round_timestamp_seconds") < 3600
            site.slurm.away = True
            service.round()
            assert told("hadar_rounds_total", result="skipped") == 1
            assert told("hadar_slurm_call_failures_total", call="read") == 1

    def test_measured_speeds(self, site: Site, metrics_of: Callable[[Service], Callable[..., float | None]]) -> None:
        """Coverage counts what was measured on exactly that type; the error is of what was estimated first."""
        job = site.slurm.submit(gpus=2, comment=MODEL)
        with site.service() as service:
            service.round()
            report = Report("report", job, 0, 1, "a" * 64, time.time(), "v100-1", steps=10, steps_per_s=3.0)
            site.slurm.vouch(job)
            service._assembly.parts.book.ingest(report)  # noqa: SLF001 a service keeps it to itself
            service.round()
            service.round()
            told = metrics_of(service)
            assert told("hadar_throughput_coverage_ratio") == 0.5
            assert told("hadar_estimate_error_ratio", gpu_type="v100") > 0
            assert told("hadar_channel_messages_total", result="accepted") == 1

    def test_served_to_prometheus(self, site: Site) -> None:
        """At the address of the configuration, in Prometheus' own text."""
        with site.service() as service:
            port = service._metrics.serve("127.0.0.1:0")  # noqa: SLF001 a service keeps it to itself
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        assert "hadar_config_reload_ok 1.0" in text and 'hadar_build_info{version="' in text
        assert "_created" not in text

    def test_an_address_that_is_taken_is_refused(self, site: Site) -> None:
        """The daemon does not start half: one line names the setting."""
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"127.0.0.1:{other.getsockname()[1]}"
            with pytest.raises(ConfigError, match=rf"metrics\.listen = '{address}' cannot be had: .* in use"):
                site.service(f"metrics.listen={address}")
        with pytest.raises(ConfigError, match=r"metrics\.listen = 'a\.\.b:9' cannot be had: "):
            Metrics().serve("a..b:9")
        for _ in range(2):  # nothing was left locked, and the end gives the address back
            with site.service(f"metrics.listen={address}") as service:
                service.round()

    def test_idle_connections_take_no_threads_and_keep_nobody_out(self, site: Site) -> None:
        """Any user of the host may open them; each was a thread for as long as it stood."""
        with site.service() as service, contextlib.ExitStack() as idle:
            port = service._metrics.serve("127.0.0.1:0")  # noqa: SLF001 a service keeps it to itself
            before = threading.active_count()
            for _ in range(200):
                idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                assert b"hadar_config_reload_ok 1.0" in answer.read()
            assert threading.active_count() <= before + 8

    def test_silent_or_garbled_connections_end(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Also after half of a head; and nothing is printed of them."""
        monkeypatch.setattr("slurm_hadar.service.scrapes._WAIT_S", 0.2)
        with site.service() as service:
            port = service._metrics.serve("127.0.0.1:0")  # noqa: SLF001 a service keeps it to itself
            for said in (b"", b"GET /metrics HTTP/1.1\r\nHost: x", b"GET http://[ HTTP/1.0\r\n\r\n", b"\0\n"):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                    client.sendall(said)
                    while client.recv(4096):
                        pass
        assert "Traceback" not in capfd.readouterr().err

    def test_rounds_out_of_cron_count_on(self, site: Site, tmp_path: Path) -> None:
        """Each process takes over the counters of the file that the one before has left."""
        file = tmp_path / "hadar.prom"
        for _ in range(3):
            site.slurm.submit(gpus=1, comment=f"{MODEL},ckpt=yes")
            with site.service(f"metrics.textfile={file}", once=True) as service:
                service.round()
        text = file.read_text()
        assert 'hadar_rounds_total{result="done"} 3.0' in text and 'hadar_changes_total{kind="start"} 3.0' in text
        assert file.stat().st_mode & 0o777 == 0o644
        assert [p.name for p in tmp_path.glob("hadar.prom*")] == ["hadar.prom"]

    def test_a_file_that_is_not_ours_or_cannot_be_written(self, site: Site, tmp_path: Path) -> None:
        """Counters begin at 0; a directory that is not there costs a line, not the round."""
        file = tmp_path / "hadar.prom"
        counter = 'hadar_rounds_total{result="done"} '
        for text in ("{{{ no metrics", *(f"# TYPE hadar_rounds_total counter\n{counter}{n}\n" for n in ("-5", "NaN"))):
            file.write_text(text)
            with site.service(f"metrics.textfile={file}", once=True) as service:
                service.round()
            assert f"{counter}1.0" in file.read_text()
        with site.service(f"metrics.textfile={tmp_path}/gone/hadar.prom", once=True) as service:
            assert service.round().plan is not None


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


class TestStandby:
    """One controller on each slurmctld's host; the one whose slurmctld acts, acts."""

    def test_the_backup_observes_and_says_so_until_it_takes_over(
        self, site: Site, metrics_of: Callable[[Service], Callable[..., float | None]]
    ) -> None:
        """Without the journal of the other: jobs that wait are started all the same."""
        here = socket.gethostname()
        job = site.slurm.submit(gpus=2, comment=MODEL)
        site.daemons = (Daemon("primary", "elsewhere", True), Daemon("backup", here, True))
        with site.service("channel.enabled=true", "channel.bind=tcp://127.0.0.1:*") as service:
            file = site.folder / "hadar-channel.json"
            result = service.round()
            assert (result.record.mode, result.record.writes) == ("observe", 0)
            assert result.record.note == "standby: slurmctld acts on elsewhere (primary), and this host is backup"
            assert metrics_of(service)("hadar_standby") == 1
            assert not file.exists()  # jobs report to the host that acts

            site.daemons = (Daemon("primary", "elsewhere", False), Daemon("backup", here, True))
            assert service.round().record.mode == "observe" and not file.exists()
            result = service.round()
            assert (result.record.mode, result.record.starts, result.record.note) == ("act", 1, "")
            assert site.slurm.jobs[job].nodes == ("v100-1",) and metrics_of(service)("hadar_standby") == 0
            assert json.loads(file.read_text())["address"].startswith("tcp://")

            file.unlink()
            file.mkdir()  # cannot be written: reports come by the jobs' directories, and rounds go on
            service._assembly.parts.channel.quiet = True  # noqa: SLF001 a service keeps it to itself
            assert service.round().record.mode == "act"
            file.rmdir()
            site.daemons = (Daemon("primary", "elsewhere", True), Daemon("backup", here, True))
            assert service.round().record.mode == "observe" and not file.exists()

    @pytest.mark.parametrize(
        ("daemons", "setting"),
        [
            ((), "primary"),
            ((Daemon("primary", "elsewhere", True),), "primary"),
            ((Daemon("primary", "a", True), Daemon("backup", "b", True)), "primary"),
            ((Daemon("primary", "elsewhere", True), Daemon("backup", "HERE", True)), "any"),
            ((Daemon("primary", "HERE.site.org", True), Daemon("backup", "b", True)), "primary"),
        ],
    )
    def test_who_may_act_at_once(self, site: Site, daemons: tuple[Daemon, ...], setting: str) -> None:
        """One slurmctld, none of several here, told so by the configuration, or the primary's own host."""
        here = socket.gethostname().split(".")[0]
        site.daemons = tuple(Daemon(d.role, d.host.replace("HERE", here), d.up) for d in daemons)
        site.slurm.submit(gpus=2, comment=MODEL)
        with site.service(f"controller.ha={setting}") as service:
            assert service.round().record.starts == 1

    def test_a_single_slurmctld_is_asked_once(
        self, site: Site, metrics_of: Callable[[Service], Callable[..., float | None]]
    ) -> None:
        """Where there are not several, no round asks again."""
        site.daemons = (Daemon("primary", "elsewhere", True),)
        with site.service() as service:
            for _ in range(3):
                service.round()
            assert metrics_of(service)("hadar_slurm_calls_total", call="daemons") == 1

    def test_one_for_some_users_stands_by_beside_everybodys(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        """It goes on when that one has ended; jobs are told where to report to by who acts."""
        site.slurm.submit(gpus=2, comment=MODEL, user="alice")
        settings = ("controller.users=['alice']", "channel.enabled=true", "channel.bind=tcp://127.0.0.1:*")
        file = site.folder / "hadar-channel.json"
        with site.service(*settings) as service:
            everybodys = ScopeLock(site.folder / "other", site.slurm.identity(), ())
            for _ in range(2):
                file.unlink(missing_ok=True)
                result = service.round()
                assert (result.record.mode, result.record.writes) == ("observe", 0) and not file.exists()
            first = f"standby: another controller on this host steers everybody's jobs (process {os.getpid()})"
            assert result.record.note == first and caplog.text.count(first) == 1
            everybodys.release()

            result = service.round()
            assert (result.record.mode, result.record.starts) == ("act", 1) and file.exists()
            assert "taking over: nobody steers everybody's jobs now" in caplog.text

    @pytest.mark.parametrize(
        ("users", "hosts", "left"),
        [("['alice']", ("HERE",), True), ("[]", ("HERE",), False), ("['alice']", ("HERE", "elsewhere"), False)],
    )
    def test_each_round_sees_to_it_that_jobs_know_where_to_report(
        self, site: Site, users: str, hosts: tuple[str, ...], left: bool
    ) -> None:
        """What was removed is there again after the next one. Another controller that answers is left its file, but not
        where it must be one that stands by."""
        here, file = socket.gethostname().split(".")[0], site.folder / "hadar-channel.json"
        site.daemons = tuple(Daemon("slurmctld", h.replace("HERE", here), True) for h in hosts)
        other = Channel(ReportBook(), site.folder, "tcp://127.0.0.1:*", "127.0.0.1", file, 8192)
        settings = (f"controller.users={users}", "channel.enabled=true", "channel.bind=tcp://127.0.0.1:*")
        with contextlib.closing(other), site.service(*settings) as service:
            for number in range(2):
                service.round()
                assert (file.read_text() == other.info.to_json()) == (left and not number), number
                file.unlink()
            service.round()
            assert file.exists()

    def test_a_slurm_that_does_not_say_is_away(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        def away() -> tuple[Daemon, ...]:
            raise SlurmUnavailable("slurmctld does not answer scontrol ping")

        monkeypatch.setattr(site.slurm, "daemons", away)
        with site.service() as service:
            assert service.round().record.note.startswith("skipped: slurmctld does not answer")


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
