"""Figures for Prometheus, over HTTP and in a file."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.messages import Report
from slurm_hadar.service.metrics import Metrics
from slurm_hadar.service.service import Service
from tests.service.conftest import MODEL, Site


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

    def test_the_hooks_of_a_round_out_of_cron_are_counted(self, site: Site, tmp_path: Path) -> None:
        """They end after the round has been told of."""
        file, script = tmp_path / "hadar.prom", tmp_path / "hook.sh"
        script.write_text(f"#!/bin/sh\nuntil [ -e {file} ]; do sleep 0.05; done\nexit 3\n")
        script.chmod(0o755)
        job = site.slurm.submit(gpus=2, comment=f"{MODEL},lose=yes")
        site.slurm.start(job, "k80-1")
        with site.service(f"metrics.textfile={file}", f"hooks.moved={script}", once=True) as service:
            assert service.round().record.moves == 1
        assert 'hadar_hook_runs_total{result="failed"} 1.0' in file.read_text()

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
