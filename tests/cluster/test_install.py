"""Getting Slurm without touching the system, and accounting on top of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_hadar.cluster import PrivateCluster, install, wrappers
from slurm_hadar.errors import ClusterError

needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt-get: nothing can be unpacked here")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One download for all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slurm
@needs_apt
def test_unpacked_slurm_runs_jobs(
    cache: Path, monkeypatch: pytest.MonkeyPatch, make_cluster: Callable[..., PrivateCluster]
) -> None:
    """An unpacked Slurm runs a cluster with its own daemons, clients and plugins."""
    monkeypatch.setenv("HADAR_CACHE", str(cache))
    cluster = make_cluster("v100:2x1", slurm="unpacked", plugins=True)

    said = cluster.run(["srun", "-N2", "--gres=gpu:1", "printenv", "CUDA_VISIBLE_DEVICES"]).stdout
    refused = cluster.run(["sbatch", "--comment=hadar:x", "--wrap", "true"], check=False)
    programs = {str(Path(f"/proc/{p.pid}/exe").readlink()) for p in cluster.processes() if p.daemon}

    assert said.split() == ["0", "0"]
    assert "unknown key 'x'" in refused.stderr
    assert programs and all(program.startswith(str(cache)) for program in programs)
    assert cluster.exports["PATH"].startswith(str(cache))


@pytest.mark.slurm
@needs_apt
def test_accounting_records_jobs(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_cluster: Callable[..., PrivateCluster],
    poll: Callable[..., str],
) -> None:
    """sacct knows a job's GPUs by type; MariaDB and slurmdbd end with the cluster."""
    monkeypatch.setenv("HADAR_CACHE", str(cache))
    cluster = make_cluster("v100:1x2", name="acct-1", slurm="unpacked", accounting=True)
    job = cluster.run(["sbatch", "--parsable", "-o", "/dev/null", "--gres=gpu:2", "--wrap", "true"]).stdout.strip()
    sacct = ["sacct", "-n", "-P", "-X", "-j", job, "-o", "state,alloctres"]

    said = poll(lambda: (t := cluster.run(sacct).stdout).startswith("COMPLETED") and t, 60)
    names = {p.name for p in cluster.processes()}
    cluster.down()

    assert "gres/gpu:v100=2" in said
    assert {"mariadbd", "slurmdbd"} <= names
    assert cluster.processes() == []


@pytest.mark.thorough
@needs_apt
@pytest.mark.usefixtures("cache")
def test_unpacks_without_package_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With no lists on the system, lists of our own are fetched; the system's are not written."""
    # apt is told of an empty state folder the way an administrator would, by a configuration file
    lists = tmp_path / "lists"
    (lists / "partial").mkdir(parents=True)
    config = tmp_path / "apt.conf"
    config.write_text(f'Dir::State::lists "{lists}";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    monkeypatch.setenv("HADAR_CACHE", str(tmp_path / "cache"))

    found = install.ensure("unpacked")

    assert found.root == tmp_path / "cache" / "slurm"
    assert found.version >= (20, 11)
    assert [p.name for p in lists.iterdir()] == ["partial"]


def test_system_slurm_is_found_outside_a_users_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemons in /usr/sbin are found though a normal user's PATH lacks it."""
    if not Path("/usr/sbin/slurmctld").exists():
        pytest.skip("no Slurm in /usr/sbin")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    found = install.find_on_path()

    assert found is not None and found.program("slurmctld") == "/usr/sbin/slurmctld"
    assert not found.search
    with pytest.raises(ClusterError, match="slurmfoo is missing"):
        found.program("slurmfoo")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this checkout."""
    repository, folder = Path(__file__).resolve().parents[2], tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("slurm_hadar", "wrappers"):
        shutil.copytree(repository / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "LICENSE"):
        shutil.copy(repository / name, source)
    (source / "README.md").write_text("x")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source], check=True, capture_output=True
    )
    return next(folder.glob("*.whl"))


@pytest.mark.built
@pytest.mark.parametrize("scheme", ["--target", "--prefix"])
def test_wrappers_are_found_from_an_installed_wheel(wheel: Path, tmp_path: Path, scheme: str) -> None:
    """A wheel carries the files, and they are found where pip put them."""
    target = tmp_path / "site"
    # --ignore-installed: with --prefix, pip would else uninstall the project from the environment that runs the tests
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--ignore-installed", scheme,
           str(target), str(wheel)]  # fmt: skip
    subprocess.run(pip, check=True, capture_output=True)
    code = (
        "from slurm_hadar.cluster import wrappers; import json; print(json.dumps([str(wrappers.find(n)) for n in %r]))"
    )
    names = ["job_submit.lua", "task_prolog.sh"]
    packages = next(target.rglob("slurm_hadar/__init__.py")).parents[1]

    done = subprocess.run(
        [sys.executable, "-c", code % names],
        env={**os.environ, "PYTHONPATH": str(packages)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    for name, path in zip(names, json.loads(done.stdout), strict=True):
        assert path.startswith(str(target))
        assert Path(path).read_text() == (Path(__file__).resolve().parents[2] / "wrappers" / name).read_text()


def test_missing_wrapper_is_named() -> None:
    """An incomplete installation is said to be one."""
    with pytest.raises(ClusterError, match=r"nothing\.lua is missing"):
        wrappers.find("nothing.lua")
