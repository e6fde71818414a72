"""What Slurm's commands answer, as a survey reads it; the commands are scripts that say what a real one said."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.state import Daemon
from slurm_hadar.slurm.survey import Survey, Unknown, survey

CONFIG = """Configuration data as of 2026-11-22T03:41:56
AccountingStorageType   = {accounting}
ClusterName             = site
KillWait                = 30 sec
SchedulerParameters     = bf_interval=1,bf_continue
SlurmUser               = slurm(64030)
SlurmctldHost[0]        = head(10.0.0.1)
SlurmctldParameters     = (null)
SlurmctldPort           = 6817
SLURM_VERSION           = 22.05.8
TaskPluginParam         = (null type)

Cgroup Support Configuration:
ConstrainDevices        = yes

Slurmctld(primary) at head is UP
Slurmctld(backup) at spare is DOWN
"""
NODES = "NodeName=a1 Arch=x86_64 State=IDLE BootTime=5 SlurmdStartTime={start} LastBusyTime=9\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a Slurm of scripts on PATH: ``site(squeue="exit 1")`` replaces one by a line of shell."""

    def make(accounting: str = "accounting_storage/none", start: int = 1000, **scripts: str) -> CliBackend:
        (tmp_path / "config").write_text(CONFIG.format(accounting=accounting))
        (tmp_path / "nodes").write_text(NODES.format(start=start))
        lines = {
            "scontrol": f'case "$*" in "show config") cat {tmp_path}/config;; "ping") tail -2 {tmp_path}/config;; '
            f"*node) cat {tmp_path}/nodes;; *) exit 1;; esac",
            "squeue": "true",
            "sinfo": "true",
            "scancel": "true",
            "sacct": "true",
            "sacctmgr": 'echo "$5|Operator|lab,hpc"',
            "sdiag": 'echo; echo "sdiag output at Sun Nov 22 03:41:56 2026 ($(date +%s))"',
            **scripts,
        }
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, line in lines.items():
            (folder / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return CliBackend(timeout_s=20, retries=0)

    return make


def well(answer: Survey | Unknown) -> Survey:
    assert isinstance(answer, Survey), answer
    return answer


def test_answers_are_read(site: Any) -> None:
    """Settings, daemons, rights, accounting and clocks."""
    found = well(survey(site("accounting_storage/slurmdbd")))

    assert found.version == (22, 5, 8) and found.identity == "site head(10.0.0.1) 6817"
    assert found.settings["SlurmctldParameters"] == found.settings["TaskPluginParam"] == ""
    assert found.settings["ConstrainDevices"] == "yes" and found.number("KillWait") == 30
    assert found.options("SchedulerParameters") == {"bf_interval": "1", "bf_continue": ""}
    assert found.daemons == (Daemon("primary", "head", True, "10.0.0.1"), Daemon("backup", "spare", False))
    assert found.admin_level == ("Operator", ("lab", "hpc")) and found.accounting is True
    assert found.latest_start == (1000.0, "a1") and isinstance(found.setting("Nothing"), Unknown)
    assert not isinstance(found.clock_ahead_s, Unknown)
    least, most = found.clock_ahead_s
    assert least <= 0 < most


def test_without_a_database_nobody_has_rights(site: Any) -> None:
    """And neither sacctmgr nor sacct is asked."""
    found = well(survey(site(sacctmgr="exit 1", sacct="exit 1")))

    assert found.admin_level == ("None", ()) and found.accounting is False


def test_a_user_whom_the_database_does_not_know(site: Any) -> None:
    """Is told from one without rights: sacctmgr modifies nothing of such a user."""
    assert well(survey(site("accounting_storage/slurmdbd", sacctmgr="true"))).admin_level == ("", ())


@pytest.mark.parametrize(
    ("name", "line", "field", "words"),
    [
        ("sdiag", "echo 'sdiag: error: Access denied' >&2; exit 1", "clock_ahead_s", "Access denied"),
        ("sdiag", "echo nothing", "clock_ahead_s", "sdiag shows no time"),
        ("squeue", "echo half", "state", "cut short"),
        ("sacct", "echo 'Connection refused' >&2; exit 1", "accounting", "Connection refused"),
        ("sacctmgr", "echo 'Unable to contact' >&2; exit 1", "admin_level", "Unable to contact"),
        ("sacctmgr", "echo 'something else'", "admin_level", "says 'something else'"),
    ],
)
def test_what_is_not_answered_is_unknown(site: Any, name: str, line: str, field: str, words: str) -> None:
    """With the reason; the other questions are asked all the same."""
    found = well(survey(site("accounting_storage/slurmdbd", **{name: line})))

    answer = getattr(found, field)
    assert isinstance(answer, Unknown) and words in answer.why
    assert found.daemons == (Daemon("primary", "head", True, "10.0.0.1"), Daemon("backup", "spare", False))


def test_slurm_that_does_not_answer_is_asked_once(site: Any, tmp_path: Path) -> None:
    """A call to a dead slurmctld may take ten seconds; one is enough."""
    count = f"echo x >> {tmp_path}/calls; echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"

    found = survey(site(scontrol=count, squeue=count, sinfo=count, sdiag=count))

    assert isinstance(found, Unknown) and "Unable to contact" in found.why
    assert (tmp_path / "calls").read_text() == "x\n"


def test_a_call_that_hangs_is_given_up(site: Any) -> None:
    """After the time limit, with one line."""
    site(scontrol="exec sleep 600")
    began = time.monotonic()

    found = survey(CliBackend(timeout_s=0.5, retries=0))

    assert isinstance(found, Unknown) and "did not answer within 0.5 s" in found.why
    assert time.monotonic() - began < 300


def test_no_slurm_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No command on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    found = survey(CliBackend(env=dict(os.environ), retries=0))

    assert isinstance(found, Unknown) and "not on PATH" in found.why


def test_a_slurmdbd_that_is_away_is_waited_for_once(site: Any, tmp_path: Path) -> None:
    """And who waits is told for whom."""
    asked: list[str] = []
    backend = site(
        "accounting_storage/slurmdbd",
        sacctmgr="echo 'sacctmgr: error: Connection refused' >&2; exit 1",
        sacct=f"touch {tmp_path}/asked",
    )

    found = survey(backend, asked.append)

    assert isinstance(found, Survey) and found.admin_level == found.accounting != True  # noqa: E712
    assert isinstance(found.accounting, Unknown) and found.accounting.away
    assert asked == ["slurmctld", "slurmdbd"] and not (tmp_path / "asked").exists()


def test_a_slurmctld_that_denies_has_answered(site: Any) -> None:
    """As where PrivateData hides the nodes; what it complains of at each call is no reason."""
    line = "scontrol: error: Ignoring ControlMachine"
    backend = site()
    config = backend.ask("scontrol", "show", "config")
    backend = CliBackend(20, retries=0)
    folder = Path(os.environ["PATH"].partition(":")[0])
    (folder.parent / "config").write_text(config)
    (folder / "scontrol").write_text(
        f"""#!/bin/sh
echo "{line}" >&2
case "$*" in *node) echo "slurm_load_node error: Access/permission denied" >&2; exit 1;; esac
cat {folder.parent}/config
"""
    )

    found = survey(backend)

    assert isinstance(found, Survey) and found.noise == ("Ignoring ControlMachine",)
    assert isinstance(found.latest_start, Unknown) and found.latest_start.why.startswith(
        "scontrol failed: slurm_load_node error: Access/permission denied"
    )
