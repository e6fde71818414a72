"""What is installed for systemd: sound, sandboxed, and of one mind with the code."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_hadar.config import Config

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "wrappers" / "systemd"
SERVICES = ("slurm-hadar.service", "slurm-hadar-once.service")
#: Most exposure that "systemd-analyze security" may find, in its own tenths: 2.0 of 10.
MOST_EXPOSURE = 19
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian's package systemd)"
)


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """Sections of a unit file; a setting may stand several times."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_the_sandbox_is_tight(name: str) -> None:
    """systemd's own judgement: exposure below 2.0, where 10 is a service with no sandbox."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={MOST_EXPOSURE}", UNITS / name],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file (systemd 250 and later can)")

    said = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert said, done.stdout + done.stderr
    assert float(said[1]) < 2.0 and done.returncode == 0, done.stdout


@needs_systemd
@pytest.mark.parametrize("name", [*SERVICES, "slurm-hadar.timer"])
def test_systemd_understands_every_line(name: str, tmp_path: Path) -> None:
    """No unknown setting, no bad value; the program stands where this test can see it."""
    program = tmp_path / "hadar"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for file in UNITS.glob("slurm-hadar*.[st]*"):
        if file.suffix in (".service", ".timer"):
            (tmp_path / file.name).write_text(file.read_text().replace("/opt/slurm-hadar/bin/hadar", str(program)))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / name],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "notice"},
    )

    about = [line for line in (done.stdout + done.stderr).splitlines() if "slurm-hadar" in line]
    assert not [line for line in about if "Unknown" in line or "Failed to parse" in line or "not executable" in line]


def test_both_services_have_the_same_sandbox() -> None:
    """A site that takes the timer is no less safe."""
    daemon, once = (unit(name)["Service"] for name in SERVICES)
    own = {"Type", "NotifyAccess", "ExecStart", "ExecReload", "Restart", "RestartSec", "WatchdogSec", "TimeoutStopSec",
           "TimeoutStartSec", "KillMode"}  # fmt: skip

    assert {k: v for k, v in daemon.items() if k not in own} == {k: v for k, v in once.items() if k not in own}
    assert "NoNewPrivileges" in daemon and "AF_UNIX" in daemon["RestrictAddressFamilies"][0]


@pytest.mark.parametrize("name", [*SERVICES, "slurm-hadar-web.service"])
def test_no_service_can_take_the_hosts_memory_files_or_processes(name: str) -> None:
    """Whatever others send; with room for 10,000 jobs and 500 agents."""
    service = unit(name)["Service"]
    assert int(service["LimitNOFILE"][0]) >= 1024
    assert service["MemoryMax"][0] in ("512M", "1G") and int(service["TasksMax"][0]) >= 64


def test_the_service_tells_systemd_and_undoes_nothing_at_a_restart() -> None:
    """Leases run out by themselves; a restart must not shuffle the queue."""
    service = unit("slurm-hadar.service")["Service"]

    assert service["Type"] == ["notify"] and "ExecStopPost" not in service
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_times_fit_the_defaults() -> None:
    """The watchdog is longer than a question to Slurm may take, the stop longer than the end of a round, and the timer
    as long as a round."""
    config, service = Config(), unit("slurm-hadar.service")["Service"]

    assert int(service["WatchdogSec"][0]) > 1.2 * config.slurm.timeout_s * (config.slurm.retries + 1)
    assert int(service["TimeoutStopSec"][0]) > config.jobs.end_timeout_s + config.jobs.start_timeout_s + 30
    assert unit("slurm-hadar.timer")["Timer"]["OnUnitActiveSec"] == [f"{config.controller.round_s / 60:g}min"]


def test_the_options_are_options_of_the_command() -> None:
    from slurm_hadar.cli.admin.run import run

    known = {o for p in run.params for o in p.opts}
    for name in SERVICES:
        (command,) = unit(name)["Service"]["ExecStart"]
        assert command.startswith("/opt/slurm-hadar/bin/hadar run")
        assert set(command.split()[2:]) <= known


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_the_account_is_made(tmp_path: Path) -> None:
    """In a root directory of the test's own."""
    (tmp_path / "etc").mkdir()
    done = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", UNITS / "slurm-hadar.sysusers"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    (line,) = [x for x in (tmp_path / "etc/passwd").read_text().splitlines() if x.startswith("slurm-hadar:")]
    assert line.split(":")[5] == "/var/lib/slurm-hadar"
    done = subprocess.run(
        ["systemd-tmpfiles", f"--root={tmp_path}", "--create", UNITS / "slurm-hadar.tmpfiles"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    link = tmp_path / "etc/slurm-hadar/hadar-channel.json"
    if os.geteuid() == 0:
        assert done.returncode == 0, done.stderr
        assert str(link.readlink()) == "/var/lib/slurm-hadar/hadar-channel.json"
        assert (tmp_path / "etc/slurm-hadar").stat().st_uid == 0 != (tmp_path / "var/lib/slurm-hadar").stat().st_uid


def test_state_where_systemd_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """StateDirectory= of the unit is where the journal lies, unless the configuration says otherwise."""
    from slurm_hadar.controller.state_dir import chosen_state_dir

    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/slurm-hadar:/other")

    assert chosen_state_dir(Config()) == Path("/var/lib/slurm-hadar")


def test_all_is_installed() -> None:
    """Every file of wrappers that an administrator copies is in the package's data."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = {line for text in setup["options.data_files"].values() for line in text.split()}
    there = {str(p.relative_to(ROOT)) for p in (ROOT / "wrappers").rglob("*") if p.is_file()}

    assert there - listed <= {"wrappers/hadar-srun"}  # an entry point of its own
