"""``hadar cluster`` on the command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_hadar import messages
from slurm_hadar.cli.admin import cluster as command
from slurm_hadar.cli.admin.cluster import cluster
from slurm_hadar.errors import ClusterError


def _hadar(*argv: str) -> Result:
    return CliRunner().invoke(cluster, argv)


@pytest.mark.slurm
def test_up_status_env_down(short_tmp: Path) -> None:
    """The four commands work together, in text and JSON, and the exports point a shell to the cluster."""
    where = ["--dir", str(short_tmp / "c")]
    started = _hadar("up", "--nodes", "v100:1x2,k80:1x1", "--fastest", "50", *where)
    assert started.exit_code == 0, started.output
    assert f"export SLURM_CONF={short_tmp}/c/etc/slurm.conf" in started.output

    table = _hadar("status", *where)
    data = json.loads(_hadar("status", "--json", *where).stdout)
    exports = _hadar("env", *where).stdout
    seen = subprocess.run(
        ["bash", "-c", f"{exports}\nsinfo -h -N -o '%N %G'"], capture_output=True, text=True, check=True
    ).stdout
    emulation = json.loads((short_tmp / "c" / "etc" / "hadar-cluster.json").read_text())
    nobody = messages.find_channel({"SLURM_CONF": f"{short_tmp}/c/etc/slurm.conf"})
    ended = _hadar("down", *where)

    assert nobody == messages.ChannelInfo("", "")  # so that jobs wait for a controller to come
    assert "v100-1" in table.output and "k80 0/1" in table.output
    assert data["gpus"] == {"v100": 2, "k80": 1} and data["nodes"][0]["state"] == "IDLE"
    assert seen.split() == ["k80-1", "gpu:k80:1", "v100-1", "gpu:v100:2"]
    assert emulation["cluster"] == data["cluster"] == "hadar_hadar"
    assert max(rate["1"]["one_node"] for rate in emulation["speeds"]["resnet18:64"].values()) == 50
    assert ended.exit_code == 0 and "ended 4 processes" in ended.output


@pytest.mark.slurm
def test_up_prints_json(short_tmp: Path) -> None:
    """--json is one JSON document with all that is needed to use the cluster."""
    started = _hadar("up", "--json", "--nodes", "v100:1x1", "--dir", str(short_tmp / "c"))
    try:
        data = json.loads(started.stdout)
        assert data["env"]["SLURM_CONF"] == data["slurm_conf"] == f"{short_tmp}/c/etc/slurm.conf"
        assert data["nodes"] == {"v100-1": {"v100": 1}}
    finally:
        _hadar("down", "--dir", str(short_tmp / "c"))


def test_that_it_is_open_is_said_before_it_is_up(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads it can still stop it."""

    def fail(*_given: object) -> None:
        raise ClusterError("not started")

    monkeypatch.setattr(command, "bring_up", fail)
    result = _hadar("up", "--dir", str(short_tmp / "c"))

    assert isinstance(result.exception, ClusterError)
    assert "Note: this cluster is open: anybody with an account on this machine can run jobs in it" in result.output


@pytest.mark.parametrize("argv", [["down"], ["status"], ["env"], ["up", "--nodes", "v100"]])
def test_errors_are_one_line(short_tmp: Path, argv: list[str]) -> None:
    """What cannot be done is a ClusterError of one line, which the entry point turns into exit code 1."""
    result = _hadar(*argv, "--dir", str(short_tmp / "none"))

    assert result.exit_code == 1
    assert isinstance(result.exception, ClusterError) and "\n" not in str(result.exception)
