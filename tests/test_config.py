"""The configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar.config import Config, Mode, load
from slurm_hadar.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path):
    """Write a configuration file and return its path."""

    def _write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return path

    return _write


def test_defaults_observe_only() -> None:
    """Out of the box nothing is changed in Slurm."""
    assert Config().controller.mode is Mode.OBSERVE
    assert Config().mode("any") is Mode.OBSERVE


def test_mode_per_partition(write) -> None:
    """A partition's mode overrides the controller's."""
    config = load(write('[controller]\nmode="advise"\n[partitions.gpu]\nmode="act"\n'))

    assert config.mode("gpu") is Mode.ACT
    assert config.mode("cpu") is Mode.ADVISE
    assert config.mode("gpu,cpu") is Mode.ACT


def test_origin_of_each_value(write) -> None:
    """Every value can say where it was set; the command line wins."""
    path = write("[controller]\nround_s = 60\n[guard]\nmin_run_s = 1\n")
    config = load(path, ["guard.min_run_s=5", "policy.name=fifo"])

    assert config.guard.min_run_s == 5
    assert config.policy.name == "fifo"
    assert config.origin("guard.min_run_s") == "command line"
    assert config.origin("controller.round_s") == str(path)
    assert config.origin("slurm.timeout_s") == "default"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[guard]\nmax_preemption = 3\n", "unknown key guard.max_preemption; valid here: exempt_partitions"),
        ("[gard]\nx = 3\n", "unknown key gard; valid here: audit, channel, controller"),
        ('[controller]\nround_s = "long"\n', "controller.round_s = 'long'"),
        ("[controller]\nround_s = 0.1\n", "greater than or equal to 1"),
        ('[controller]\nmode = "do"\n', "'observe', 'advise' or 'act'"),
        ("[partitions.gpu]\nmodus = 1\n", "partitions.gpu"),
        ("[controller\n", "not valid TOML"),
        ("controller = 3\n", "controller"),
    ],
)
def test_faults_name_file_and_key(write, text: str, named: str) -> None:
    """A wrong file is refused in one line that names it, the key and what is wrong."""
    path = write(text)

    with pytest.raises(ConfigError) as caught:
        load(path)

    assert named in str(caught.value)
    assert str(path) in str(caught.value) or "configuration:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file() -> None:
    """A configuration file that was named must exist."""
    with pytest.raises(ConfigError, match="does not exist"):
        load(Path("/nonexistent.toml"))


@pytest.mark.parametrize("setting", ["round_s=5", "controller=", "=1", "controller.=1"])
def test_broken_override(setting: str) -> None:
    """An override must name section, key and value."""
    with pytest.raises(ConfigError):
        load(None, [setting])
