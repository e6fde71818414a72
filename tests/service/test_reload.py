"""A configuration that changes while the controller runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.model import JobState
from slurm_hadar.service.reload import NEEDS_RESTART, compare
from slurm_hadar.service.service import Service
from tests.service.conftest import MODEL, Site


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
