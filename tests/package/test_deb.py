"""The Debian package: what is in it, that it runs by itself, and (make test-deb) that it installs and purges well."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slurm_hadar import __version__
from slurm_hadar.cli.main import COMMANDS
from slurm_hadar.config import Config, changed
from tools.package import ROOT, PackageError, config_file, deb, vendor

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed (not Debian)")
pytestmark = pytest.mark.built


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this checkout, without compiled modules."""
    return deb.build(tmp_path_factory.mktemp("deb"), bytecode=False)


@pytest.fixture(scope="module")
def tree(package: Path) -> Path:
    """What it unpacks to, with its control files in DEBIAN."""
    folder = package.parent / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(folder)], check=True, timeout=300)
    return folder


@needs_dpkg
def test_contents(package: Path, tree: Path) -> None:
    """Everything that an administrator is promised, at the place where Debian looks for it; nothing elsewhere."""
    promised = [
        "usr/bin/hadar", "usr/bin/hadar-srun", "usr/lib/systemd/system/slurm-hadar.service",
        "usr/lib/systemd/system/slurm-hadar-once.service", "usr/lib/systemd/system/slurm-hadar.timer",
        "usr/lib/systemd/system/slurm-hadar-web.service", "usr/lib/sysusers.d/slurm-hadar.conf",
        "usr/lib/tmpfiles.d/slurm-hadar.conf", "etc/slurm-hadar/config.toml", "etc/slurm-hadar/config.d",
        "usr/share/slurm-hadar/wrappers/job_submit.lua", "usr/share/slurm-hadar/wrappers/grafana/hadar.json",
        "usr/share/slurm-hadar/sbatch_templates/single_gpu.sbatch", "usr/share/man/man5/slurm-hadar.toml.5.gz",
        "usr/share/bash-completion/completions/hadar", "usr/share/zsh/vendor-completions/_hadar",
        "usr/share/fish/vendor_completions.d/hadar.fish", "usr/share/doc/slurm-hadar/changelog.gz",
        "usr/share/doc/slurm-hadar/copyright", *(f"usr/share/man/man1/hadar-{name}.1.gz" for name in COMMANDS),
    ]  # fmt: skip

    assert package.name == f"slurm-hadar_{__version__}_{package.stem.rpartition('_')[2]}.deb"
    assert [path for path in promised if not os.path.lexists(tree / path)] == []
    assert {path.name for path in tree.iterdir()} == {"DEBIAN", "etc", "usr"}
    listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True, timeout=120).stdout
    assert all(line.split()[1] == "root/root" for line in listed.splitlines())
    assert "torch" not in {path.name for path in (tree / deb.SITE).iterdir()}


@needs_dpkg
def test_it_runs_from_where_it_is_unpacked(tree: Path, tmp_path: Path) -> None:
    """With nothing but the package's own libraries: -S keeps those of this environment out."""
    for words, expected in (
        (["-m", "slurm_hadar.cli.main", "--version"], f"hadar, version {__version__}"),
        (["-c", "import scipy.optimize, pandas, sklearn, textual, uvicorn; print(scipy.__file__)"], f"{tree}/"),
    ):
        done = subprocess.run(
            [sys.executable, "-S", *words], env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tree / deb.SITE)},
            capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout.startswith(expected), done.stdout + done.stderr


@needs_dpkg
def test_units_and_programs_agree(tree: Path) -> None:
    """Units start the program that the package installs, by the account that it makes."""
    for unit in (tree / "usr/lib/systemd/system").glob("*.service"):
        text = unit.read_text()
        assert "/opt/" not in text and "\nExecStart=/usr/bin/hadar " in text
        assert "\nUser=slurm-hadar\n" in text
    script = tree / "usr/bin/hadar"
    assert os.fspath(script.readlink()) == "../lib/slurm-hadar/bin/hadar"
    assert stat.S_IMODE(script.resolve().stat().st_mode) == 0o755
    assert (tree / "usr/lib/slurm-hadar/bin/python").readlink() == Path(f"/usr/bin/python{deb.MINOR}")
    # one copy of what is installed beside Slurm, found by the program as well
    assert (tree / deb.SITE / "share/slurm_hadar/wrappers").readlink() == Path("/usr/share/slurm-hadar/wrappers")


@needs_dpkg
def test_control(tree: Path) -> None:
    """It wants the Python that it was built with, keeps the administrator's configuration, and starts nothing."""
    control = (tree / "DEBIAN/control").read_text()

    assert f"python3 (>= {deb.MINOR}), python3 (<< 3.{sys.version_info.minor + 1}~)" in control
    assert (tree / "DEBIAN/conffiles").read_text() == "/etc/slurm-hadar/config.toml\n"
    for name in ("postinst", "prerm", "postrm"):
        script = tree / "DEBIAN" / name
        assert stat.S_IMODE(script.stat().st_mode) == 0o755
        subprocess.run(["sh", "-n", str(script)], check=True)
    assert not re.search(r"systemctl (enable|start|restart)", (tree / "DEBIAN/postinst").read_text())


def test_all_that_runs_is_stopped_before_its_files_go() -> None:
    """A round that the timer has begun is a service too."""
    stopped = (deb.DEBIAN / "prerm").read_text()
    units = [*(ROOT / "wrappers/systemd").glob("*.service"), *(ROOT / "wrappers/systemd").glob("*.timer")]
    assert units and all(unit.name in stopped for unit in units)


@needs_dpkg
def test_licences_of_what_it_carries(tree: Path) -> None:
    """Each library is named with its licence, and each licence text named there is in the package."""
    text = (tree / "usr/share/doc/slurm-hadar/copyright").read_text()

    for folder in (tree / deb.SITE).glob("*.dist-info"):
        name = folder.name.partition("-")[0]
        if name != "slurm_hadar":
            assert re.search(rf"^{name.replace('_', '[-_.]')} \S+: \S", text, re.MULTILINE | re.IGNORECASE), name
    named = re.findall(r"^    /(\S.*)$", text, re.MULTILINE)
    assert named and all((tree / path).is_file() for path in named)
    with gzip.open(tree / "usr/share/doc/slurm-hadar/CHANGELOG.md.gz", "rt") as stream:
        assert stream.readline() == "# Changelog\n"


def test_the_installed_configuration_is_the_default_one() -> None:
    """But for the service's state directory; also with every commented default switched on that has a value."""
    text = config_file.text()
    installed = changed(Config(), {"controller.state_dir": "/var/lib/slurm-hadar"})
    assert Config.model_validate(tomllib.loads(text)).flat() == installed.flat()

    shown = re.sub(r"^#(\w+ = .+)$", r"\1", text, flags=re.MULTILINE)
    found = Config.model_validate(tomllib.loads(shown.replace("#[partitions.NAME]", "[partitions.NAME]"))).flat()
    assert found.pop("partitions.NAME.mode") == "observe"
    assert found == {key: value for key, value in installed.flat().items() if key != "partitions"}


def test_a_library_that_is_missing_is_named() -> None:
    """No half package is built."""
    with pytest.raises(PackageError, match=r"no-such-library is not installed; run make install"):
        vendor.closure(["no-such-library"])
    with pytest.raises(PackageError, match=r"click>=9999 is asked for, .* is installed"):
        vendor.closure(["click>=9999"])


def test_extras_are_followed() -> None:
    """What an extra asks for counts where the extra is asked for, and only there."""
    plain, extra = (
        {vendor.canonical(d.name) for d in vendor.closure(["click", "jinja2; extra == 'web'"], frozenset(extras))}
        for extras in ((), ("web",))
    )

    assert plain == {"click"}
    assert extra == {"click", "jinja2", "markupsafe"}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as administrators get it."""
    return deb.build(tmp_path_factory.mktemp("complete"))


@needs_dpkg
@pytest.mark.slurm
@pytest.mark.skipif(
    os.environ.get("HADAR_TEST_DEB") != "1",
    reason="installing the package and running the containers' files needs a Debian suite: make test-deb",
)
@pytest.mark.parametrize("trial", ["tools/package/try_deb.sh", "tools/package/try_systemd.sh", "docker-slurm/try.sh"])
def test_installed(trial: str, complete: Path) -> None:
    """In a fresh Debian: install, look, steer a private Slurm, purge; the units under a live systemd; the containers'
    files."""
    done = subprocess.run(
        [ROOT / "tools/slurm_suite.sh", "22.05", "sh", ROOT / trial, complete],
        env={**os.environ, "HADAR_SUITE_FRESH": "1", "HADAR_SUITE_BIND": str(complete.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=550,
    )

    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert done.stdout.endswith(": all is well\n")
