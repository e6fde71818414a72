"""Of several controllers' hosts one acts."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable

import pytest

from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.safety.lock import ScopeLock
from slurm_hadar.errors import SlurmUnavailable
from slurm_hadar.service.service import Service
from slurm_hadar.slurm.state import Daemon
from tests.service.conftest import MODEL, Site


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
