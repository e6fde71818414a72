"""The configuration file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import Config, Mode, given, keeping, load, with_given
from slurm_hadar.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path) -> Any:
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


def test_mode_per_partition(write: Any) -> None:
    """A partition's mode overrides the controller's."""
    config = load(write('[controller]\nmode="advise"\n[partitions.gpu]\nmode="act"\n'))

    assert config.mode("gpu") is Mode.ACT
    assert config.mode("cpu") is Mode.ADVISE
    assert config.mode("gpu,cpu") is config.mode("cpu,gpu") is Mode.ADVISE  # the one that does least


def test_origin_of_each_value(write: Any) -> None:
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
        (
            "[guard]\nmax_preemption = 3\n",
            "unknown key guard.max_preemption; did you mean max_preemptions? valid here: exempt_partitions",
        ),
        ("[gard]\nx = 3\n", "unknown key gard; did you mean guard? valid here: audit, channel, controller"),
        ('[controller]\nround_s = "long"\n', "controller.round_s = 'long'"),
        ("[controller]\nround_s = 0.1\n", "greater than or equal to 1"),
        ("[guard]\nmin_run_s = inf\n", "guard.min_run_s = inf: input should be a finite number"),
        ("[guard]\nmin_run_s = 1e300\n", "guard.min_run_s = 1e+300: input should be less than or equal to 1000000000"),
        ("[controller]\nkeep_days = inf\n", "controller.keep_days = inf: input should be a finite number"),
        ('[controller]\nmode = "do"\n', "'observe', 'advise' or 'act'"),
        ("[partitions.gpu]\nmodus = 1\n", "partitions.gpu"),
        ('[metrics]\nlisten = "9641"\n', "metrics.listen = '9641': must read HOST:PORT, such as 127.0.0.1:9641"),
        ('[metrics]\nlisten = "0.0.0.0:99999"\n', "must read HOST:PORT"),
        ('[metrics]\nlisten = "a..b:9"\n', "no host can have the name 'a..b'"),
        (f'[metrics]\nlisten = "{"a" * 70}:9"\n', "no host can have the name 'aaaa"),
        (f"{'.'.join(['a'] * 20000)} = 1\n", "... is deeper than any setting"),
        (f"[{'.'.join(['a'] * 20000)}]\nx = 1\n", "... is deeper than any setting"),
        ('[metrics]\ntextfile = "/x/hadar.txt"\n', "must end in .prom"),
        ('[hooks]\nmoved = "mail \\"x"\n', "cannot be split into words: No closing quotation"),
        ("[guard]\nmax_stretch = 0.5\n", "guard.max_stretch = 0.5: below 1 no job would ever be stopped for others"),
        ('[log]\nformat = "xml"\n', "'text' or 'json'"),
        ("[controller\n", "not valid TOML"),
        ("controller = 3\n", "controller"),
    ],
)
def test_faults_name_file_and_key(write: Any, text: str, named: str) -> None:
    """A wrong file is refused in one line that names it, the key and what is wrong."""
    path = write(text)

    with pytest.raises(ConfigError) as caught:
        load(path)

    assert named in str(caught.value)
    assert str(path) in str(caught.value) or "configuration:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_faults_are_told_with_their_lines(write: Any) -> None:
    """One after the other by file and line, also where a section is unknown or a key is dotted."""
    head = '[controler]\nround_s = 5\n\n[controller]\nmode = "actt"\nround = 3\n'
    path = write(head + "[network]\ntypes.a100.inside_bytes_s = -1\n")

    with pytest.raises(ConfigError) as caught:
        load(path, ["guard.max_preemptions=-3"])

    faults = [str(fault).partition(" ")[0] for fault in (caught.value, *caught.value.more)]
    assert faults == [*(f"{path}:{line}:" for line in (1, 5, 6, 8)), "command"]


def test_what_is_missing_is_told_with_the_line_of_its_section(write: Any) -> None:
    path = write("[partitions.a]\n[partitions.b]\n")

    with pytest.raises(ConfigError) as caught:
        load(path)

    faults = [str(fault) for fault in (caught.value, *caught.value.more)]
    assert faults == [f"{path}:1: partitions.a.mode is missing", f"{path}:2: partitions.b.mode is missing"]


def test_a_mark_at_the_beginning_hides_no_line(write: Any) -> None:
    """Some editors write one."""
    path = write("\ufeff[guard]\r\nmin_run_s = -1\r\n")

    with pytest.raises(ConfigError, match=r"config\.toml:2: guard\.min_run_s = -1: "):
        load(path)


def test_a_file_beside_us_has_lines_too(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write("[guard]\nmax_preemptions = -3\n").parent)
    with pytest.raises(ConfigError, match=r"^config\.toml:2: guard\.max_preemptions = -3: "):
        load(Path("config.toml"))


def test_every_setting_has_a_name_and_an_origin(write: Any) -> None:
    """What is set and what is not; the same names as in --set."""
    path = write('[partitions.gpu]\nmode = "act"\n[network.types.a100]\ninside_bytes_s = 1e9\n')
    config = load(path, ["log.level=debug"])
    flat = config.flat()

    assert flat["partitions.gpu.mode"] == "act" and flat["log.level"] == "debug" and flat["hooks.at_once"] == 4
    origins = {key: config.origin(key) for key in flat}
    assert origins["partitions.gpu.mode"] == origins["network.types.a100.inside_bytes_s"] == str(path)
    assert origins["log.level"] == "command line" and origins["hooks.at_once"] == "default"


def test_files_of_the_system_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """config.toml, then config.d by name; the last one wins, and each value knows its file."""
    monkeypatch.delenv("HADAR_CONFIG", raising=False)
    monkeypatch.setattr("slurm_hadar.config.files.SYSTEM_DIR", tmp_path)
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.toml").write_text("[controller]\nround_s = 60\nkeep_days = 3\n")
    (tmp_path / "config.d" / "20-site.toml").write_text("[controller]\nround_s = 120\n")
    (tmp_path / "config.d" / "10-base.toml").write_text('[controller]\nround_s = 90\nmode = "act"\n')
    config = load()

    assert (config.controller.round_s, config.controller.mode, config.controller.keep_days) == (120, Mode.ACT, 3)
    assert config.origin("controller.round_s") == str(tmp_path / "config.d" / "20-site.toml")


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sets, such as who is left alone, would be unset without a word."""
    monkeypatch.delenv("HADAR_CONFIG", raising=False)
    monkeypatch.setattr("slurm_hadar.config.files.SYSTEM_DIR", tmp_path)
    (tmp_path / "config.d").mkdir()

    def refuses(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:  # root may read all
        patched.setattr(os, "listdir", refuses)
        patched.setattr(os, "scandir", refuses)
        with pytest.raises(ConfigError, match=f"^cannot read {tmp_path}/config.d: Permission denied$"):
            load()
    load()
    (tmp_path / "config.d").rmdir()
    load()


@pytest.mark.parametrize("key", ["controller.state_dir", "channel.file", "metrics.textfile"])
def test_an_empty_path_is_the_default(write: Any, key: str) -> None:
    section, _, name = key.partition(".")
    assert load(write(f'[{section}]\n{name} = ""\n')).flat()[key] is None
    assert load(None, [f"{key}="]).flat()[key] is None


def test_keeping_part_of_another() -> None:
    """Sections and single settings of the old configuration, all else of the new one."""
    old = load(None, ["channel.enabled=false", "slurm.timeout_s=5", "slurm.slow_read_s=1"])
    new = keeping(load(None, ["slurm.slow_read_s=2"]), old, ["channel", "slurm.timeout_s"])

    assert (new.channel.enabled, new.slurm.timeout_s, new.slurm.slow_read_s) == (False, 5, 2)


def test_missing_file() -> None:
    """A configuration file that was named must exist."""
    with pytest.raises(ConfigError, match="does not exist"):
        load(Path("/nonexistent.toml"))


@pytest.mark.parametrize("setting", ["round_s=5", "controller=", "=1", "controller.=1"])
def test_broken_override(setting: str) -> None:
    """An override must name section, key and value."""
    with pytest.raises(ConfigError):
        load(None, [setting])


def test_what_another_command_was_given(tmp_path: Path) -> None:
    """On its command line; what stands in a file both read, and who is told otherwise goes by that."""
    file = tmp_path / "config.toml"
    file.write_text("[guard]\nmin_run_s = 60.0\n")
    controller = load(file, ["guard.min_run_s=5", "policy.params.frontier=0.5", "controller.mode=act"])

    told = given(controller)

    assert told == {"guard.min_run_s": 5.0, "policy.params.frontier": 0.5, "controller.mode": "act"}
    assert with_given(load(file), told) == controller
    own = with_given(load(file, ["guard.min_run_s=7"]), told)
    assert (own.guard.min_run_s, own.policy.params) == (7.0, {"frontier": 0.5})


@pytest.mark.parametrize("key", ["controller.round_s", "guard.max_preemptions", "jobs.slow_down"])
def test_true_is_no_number(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} = True: should be a number"):
        load(None, [f"{key}=true"])


def test_one_where_a_list_is_expected() -> None:
    with pytest.raises(ConfigError, match=r"controller.users = 'ann': input should be a list, as \['ann'\]"):
        load(None, ['controller.users="ann"'])


@pytest.mark.parametrize("key", ["controller.state_dir", "metrics.textfile", "hooks.moved"])
def test_a_nul_character_is_part_of_nothing(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} = .*should hold no NUL"):
        load(None, [f'{key}="a\\u0000.prom"'])


def test_a_file_that_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"\xef\xbb\xbf[controller]\nround_s = 30\n")
    assert load(file).controller.round_s == 30
    with pytest.raises(ConfigError, match="is no file"):
        load(tmp_path)
