"""The Debian package of the controller's host: the program with its libraries, nothing to download, nothing started.

It brings a virtual environment at /usr/lib/slurm-hadar on the distribution's own Python of the same minor release as
the one that builds it. PyTorch is not in it: only jobs need that, and bring it themselves.
"""

from __future__ import annotations

import compileall
import email.utils
import gzip
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution
from pathlib import Path

from slurm_hadar import __version__
from tools.package import ROOT, PackageError, completion, config_file, man, source_time, vendor

DEBIAN = Path(__file__).parent / "debian"
HOME = Path("usr/lib/slurm-hadar")
#: extras that the package brings along
EXTRAS = frozenset({"controller", "simulator", "web", "tui"})
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = HOME / f"lib/python{MINOR}/site-packages"
#: from wrappers/systemd: what it is called where it is installed
SYSTEM_FILES = {
    "slurm-hadar.service": "usr/lib/systemd/system/slurm-hadar.service",
    "slurm-hadar-once.service": "usr/lib/systemd/system/slurm-hadar-once.service",
    "slurm-hadar.timer": "usr/lib/systemd/system/slurm-hadar.timer",
    "slurm-hadar-web.service": "usr/lib/systemd/system/slurm-hadar-web.service",
    "slurm-hadar.sysusers": "usr/lib/sysusers.d/slurm-hadar.conf",
    "slurm-hadar.tmpfiles": "usr/lib/tmpfiles.d/slurm-hadar.conf",
}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/hadar",
    "zsh": "usr/share/zsh/vendor-completions/_hadar",
    "fish": "usr/share/fish/vendor_completions.d/hadar.fish",
}
SCRIPT = """\
#!/{home}/bin/python
import sys
from {module} import main

sys.exit(main())
"""
CHANGELOG = """\
slurm-hadar ({version}) unstable; urgency=medium

  * What changed is in CHANGELOG.md.

 -- The slurm_hadar developers <slurm-hadar@localhost>  {date}
"""


def build(folder: Path, bytecode: bool = True) -> Path:
    """Write the package into ``folder`` and return its path. Needs no root. ``bytecode``: with compiled modules.

    Raises PackageError where a tool or a library is missing.
    """
    if shutil.which("dpkg-deb") is None:
        raise PackageError("dpkg-deb is missing: Debian packages are built on Debian or Ubuntu")
    architecture = _run("dpkg", "--print-architecture").strip()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / f"slurm-hadar_{__version__}_{architecture}.deb"
    with tempfile.TemporaryDirectory(prefix="slurm-hadar-deb-") as name:
        tree = Path(name) / "tree"
        own = _program(tree, Path(name))
        libraries = vendor.closure(own.requires or [], EXTRAS)
        for library in libraries:
            vendor.copy(library, tree / SITE)
        if bytecode:
            _compile(tree)
        _beside(tree)
        _papers(tree, libraries)
        _control(tree, architecture)
        for entry in tree.rglob("*"):  # whatever the umask of the one who builds
            if not entry.is_symlink():
                entry.chmod(0o755 if entry.is_dir() or entry.stat().st_mode & 0o100 else 0o644)
        _run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z9", "--build", str(tree), str(path),
             env={**os.environ, "SOURCE_DATE_EPOCH": str(source_time())})  # fmt: skip
    return path


def _program(tree: Path, work: Path) -> Distribution:
    """Install the project itself, and what makes a virtual environment of its folder."""
    copy = work / "source"  # setuptools leaves its traces beside what it builds
    for part in ("slurm_hadar", "wrappers"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / part, copy / part)
    site = tree / SITE
    _run(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps", "--no-index",
         "--no-build-isolation", "--no-compile", "--no-warn-script-location", "--target", str(site),
         str(copy))  # fmt: skip
    shutil.rmtree(site / "bin")
    (tree / HOME / "bin").mkdir()
    (tree / HOME / "bin/python").symlink_to(f"/usr/bin/python{MINOR}")
    (tree / HOME / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {MINOR}\n"
    )
    (tree / "usr/bin").mkdir(parents=True)
    for program, module in (("hadar", "slurm_hadar.cli.main"), ("hadar-srun", "slurm_hadar.runtime.launcher")):
        script = tree / HOME / "bin" / program
        script.write_text(SCRIPT.format(home=HOME, module=module))
        script.chmod(0o755)
        (tree / "usr/bin" / program).symlink_to(f"../lib/slurm-hadar/bin/{program}")
    return next(iter(Distribution.discover(name="slurm_hadar", path=[str(site)])))


def _compile(tree: Path) -> None:
    """Compile all modules here: the package is bound to this release of Python anyway, and removing it leaves none."""
    compileall.compile_dir(
        tree / SITE, stripdir=str(tree), prependdir="/", quiet=2, workers=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )  # fmt: skip


def _beside(tree: Path) -> None:
    """Units, configuration, man pages, completion, and what is copied beside Slurm."""
    for name, target in SYSTEM_FILES.items():
        text = (ROOT / "wrappers/systemd" / name).read_text()
        _write(tree / target, text.replace("/opt/slurm-hadar/bin/hadar", "/usr/bin/hadar"))
    _write(tree / "etc/slurm-hadar/config.toml", config_file.text())
    (tree / "etc/slurm-hadar/config.d").mkdir()
    man.write(tree / "usr/share/man")
    for page in (tree / "usr/share/man").iterdir():
        section = tree / f"usr/share/man/man{page.suffix[1:]}"
        section.mkdir(exist_ok=True)
        _compress(page.read_bytes(), section / f"{page.name}.gz")
        page.unlink()
    for shell, target in COMPLETIONS.items():
        _write(tree / target, completion.script(shell))
    shared = tree / "usr/share/slurm-hadar"
    # one copy of each: where people look for it, and where the program does
    shutil.move(tree / SITE / "share/slurm_hadar/wrappers", shared / "wrappers")
    shutil.rmtree(shared / "wrappers/systemd")
    (tree / SITE / "share/slurm_hadar/wrappers").symlink_to("/usr/share/slurm-hadar/wrappers")
    for name in ("hadar-srun", "task_prolog.sh", "mail_user.sh"):
        shutil.copyfile(ROOT / "wrappers" / name, shared / "wrappers" / name)
        (shared / "wrappers" / name).chmod(0o755)
    shutil.copytree(ROOT / "sbatch_templates", shared / "sbatch_templates")


def _papers(tree: Path, libraries: list[Distribution]) -> None:
    """Changelog, copyright with the licences of the libraries, and the documentation."""
    papers = tree / "usr/share/doc/slurm-hadar"
    shutil.copytree(ROOT / "docs", papers / "docs", ignore=shutil.ignore_patterns("results", "*.py", "_*"))
    date = email.utils.formatdate(source_time())
    _compress((ROOT / "CHANGELOG.md").read_bytes(), papers / "CHANGELOG.md.gz")
    _compress(CHANGELOG.format(version=__version__, date=date).encode(), papers / "changelog.gz")
    lines = ["slurm_hadar: MIT licence", "", (ROOT / "LICENSE").read_text(), f"Libraries in /{SITE}:", ""]
    for library in libraries:
        lines.append(f"{library.name} {library.version}: {vendor.licence(library)}")
        lines += [f"    /{SITE / file}" for file in vendor.licence_files(library)]
    (papers / "copyright").write_text("\n".join(lines) + "\n")


def _control(tree: Path, architecture: str) -> None:
    control = tree / "DEBIAN"
    control.mkdir()
    size = sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir()) // 1024
    (control / "control").write_text(
        (DEBIAN / "control").read_text().format(
            version=__version__, architecture=architecture, size=size, minor=MINOR,
            next=f"{sys.version_info.major}.{sys.version_info.minor + 1}",
        )
    )  # fmt: skip
    (control / "conffiles").write_text("/etc/slurm-hadar/config.toml\n")
    for name in ("postinst", "prerm", "postrm"):
        shutil.copyfile(DEBIAN / name, control / name)
        (control / name).chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _compress(content: bytes, target: Path) -> None:
    target.write_bytes(gzip.compress(content, mtime=0))


def _run(*words: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise PackageError(f"{' '.join(words[:4])} failed: {said}")
    return done.stdout
