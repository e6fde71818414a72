"""What the doctor finds out about a host, with all that can be wrong with one."""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_hadar.config import load
from slurm_hadar.doctor.host import Host, inspect_host
from slurm_hadar.slurm.state import ClusterState, SlurmJob
from slurm_hadar.slurm.survey import Survey, Unknown
from tests.doctor import test_checks

AWAY = Unknown("away")


def job(work_dir: Path, comment: str = "hadar:") -> SlurmJob:
    return replace(test_checks.job(comment), work_dir=str(work_dir))


def test_it_only_looks(tmp_path: Path) -> None:
    """Nothing is made, not even the state directory, and a place that would be made is good."""
    host = inspect_host(load(None, (f"controller.state_dir={tmp_path / 'a/b'}",)), "", AWAY)

    assert host.state_fault == "" and isinstance(host.state_fs, str) and not list(tmp_path.iterdir())
    assert host.lock_holder == Unknown("which cluster this is, is not known")
    assert host.pyslurm == "not tried without a Slurm" and isinstance(host.own_script, str)
    assert (Path(host.wrappers) / "job_submit.lua").is_file()


def test_the_file_system_of_a_state_directory_is_that_which_a_link_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database on a file server is warned of, also behind a link, and where a name has a blank."""
    (tmp_path / "the share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "the share")
    share = str(tmp_path / "the share").replace(" ", "\\040")
    read, mounts = Path.read_text, f"root / ext4 rw 0 0\nserver:/x {share} nfs4 rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda p, *a, **k: mounts if p == Path("/proc/mounts") else read(p, *a, **k))

    for name, kind in {"link": "nfs4", "the share/new": "nfs4", "other": "ext4"}.items():
        assert inspect_host(load(None, (f"controller.state_dir={tmp_path / name}",)), "", AWAY).state_fs == kind


def test_a_state_directory_below_a_file(tmp_path: Path) -> None:
    """Said in a few words."""
    (tmp_path / "file").touch()

    assert (
        "not a dir"
        in inspect_host(load(None, (f"controller.state_dir={tmp_path}/file/x",)), "", AWAY).state_fault.lower()
    )
    assert (
        "not a dir"
        in inspect_host(load(None, (f"controller.state_dir={tmp_path}/file",)), "", AWAY).state_fault.lower()
    )


def test_a_state_directory_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told also while a controller runs, which does nothing then; and no more once there is room again."""
    config = load(None, (f"controller.state_dir={tmp_path}/a",))
    room = os.statvfs(tmp_path)
    full = os.statvfs_result((*room[:4], 0, *room[5:]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _path: full)
        assert inspect_host(config, "", AWAY).state_fault == f"no room left in {tmp_path}"

    assert inspect_host(config, "", AWAY).state_fault == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_of_others(tmp_path: Path) -> None:
    """Named."""
    tmp_path.chmod(0o500)

    assert str(tmp_path) in inspect_host(load(None, (f"controller.state_dir={tmp_path}/x",)), "", AWAY).state_fault


@pytest.mark.parametrize("name", ["journal.db", "channel.key", "notes.key", "controller.lock"])
def test_a_file_of_the_state_that_is_another_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whose it is, is said; by the doctor, and of the journal also by who cannot open it."""
    (tmp_path / name).touch(0o600)
    (tmp_path / "other").touch()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: Path(path).name != name and may(path, mode, **more))

    faults = inspect_host(load(None, (f"controller.state_dir={tmp_path}",)), "", AWAY).state_files

    assert list(faults) == [tmp_path / name]
    assert f"{name} is of user {pwd.getpwuid(os.getuid()).pw_name} (-rw-------)" in faults[tmp_path / name]


def _bound() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """Found by trying; a free choice and an interface's name are not tried."""
    slurm = Survey("eve", 1000, (22, 5, 8), "site head 6817")
    with _bound() as taken:
        port = taken.getsockname()[1]

        def fault(bind: str) -> str:
            settings = (f"controller.state_dir={tmp_path}", f"channel.bind={bind}", "slurm.backend=cli")
            return inspect_host(load(None, settings), "", slurm).port_fault

        assert f"tcp://127.0.0.1:{port}" in fault(f"tcp://127.0.0.1:{port}")
        assert fault("tcp://*:*") == fault(f"tcp://eth0:{port}") == ""
        assert "port must be" in fault("tcp://127.0.0.1:70000")


def test_metrics_hooks_and_users_that_cannot_be(tmp_path: Path) -> None:
    """Found by trying; what is well, and a port that a controller of ours holds, is no fault."""

    def inspected(*settings: str, holds: bool = False) -> Host:
        config = load(None, (f"controller.state_dir={tmp_path}", "slurm.backend=cli", *settings))
        return inspect_host(config, "", AWAY if holds else Survey("eve", 1000, (22, 5, 8), "site head 6817"))

    with _bound() as taken:
        listen = f"metrics.listen=127.0.0.1:{taken.getsockname()[1]}"
        (fault,) = inspected(listen).metrics_faults
        assert "metrics.listen: 127.0.0.1" in fault and "in use" in fault
        assert inspected(listen, holds=True).metrics_faults == ()
    (fault,) = inspected(f"metrics.textfile={tmp_path}/none/x.prom").metrics_faults
    assert f"{tmp_path}/none is no directory" in fault
    assert "mial.sh is no program" in inspected("hooks.moved=mial.sh --all").hook_fault
    assert inspected('controller.users=["root", "nobody-here"]').no_users == ("nobody-here",)
    well = inspected(f"metrics.textfile={tmp_path}/x.prom", "hooks.moved=true 1", 'controller.users=["root"]')
    assert (well.metrics_faults, well.hook_fault, well.no_users) == ((), "", ())


@pytest.mark.parametrize("name", ["nowhere.invalid", "a" * 70, "."])
def test_a_host_name_that_is_none(tmp_path: Path, name: str) -> None:
    """Whatever the resolver makes of it."""
    host = inspect_host(load(None, (f"controller.state_dir={tmp_path}", f"channel.host={name}")), "", AWAY)

    assert isinstance(host.host_addresses, Unknown) and "does not resolve" in host.host_addresses.why


def test_work_directories_and_script(tmp_path: Path) -> None:
    """Those of jobs that are ours; strange names do no harm; the script beside slurm.conf is read."""
    odd = tmp_path / "$(touch x) 'n\nl"
    odd.mkdir()
    (tmp_path / "job_submit.lua").write_text("-- site")
    jobs = (job(odd), job(tmp_path / "gone"), job(tmp_path / "not ours", comment=""))
    slurm = Survey(
        "eve",
        1000,
        (22, 5, 8),
        "site head 6817",
        {"SLURM_CONF": f"{tmp_path}/slurm.conf"},
        state=ClusterState(0.0, jobs),
    )

    host = inspect_host(load(None, (f"controller.state_dir={tmp_path}", "slurm.backend=cli")), "", slurm)

    assert host.work_dirs == {str(odd): True, str(tmp_path / "gone"): False} and not (tmp_path / "x").exists()
    assert host.job_submit == "-- site" and host.lock_holder == ""


@pytest.mark.parametrize("call", ['dofile("hadar.lua")', "dofile '{}/hadar.lua' -- ours"])
def test_a_script_that_the_site_s_own_loads_is_looked_at(tmp_path: Path, call: str) -> None:
    (tmp_path / "other.lua").write_text("-- other")
    (tmp_path / "hadar.lua").write_text("function hadar_parse")
    settings = {"SLURM_CONF": f"{tmp_path}/slurm.conf"}
    for loads, found in ((call.format(tmp_path), "function hadar_parse"), ('dofile("other.lua")', None)):
        text = f'dofile("other.lua")\n{loads}\n'
        (tmp_path / "job_submit.lua").write_text(text)
        slurm = Survey("eve", 1000, (22, 5, 8), "site head 6817", settings, state=ClusterState(0.0, ()))
        host = inspect_host(load(None, (f"controller.state_dir={tmp_path}", "slurm.backend=cli")), "", slurm)
        assert host.job_submit == (found or text)
