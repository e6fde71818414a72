"""What is installed where: the job side and people's commands need no extra, the others name the one they need."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest

BASE = ("click", "rich", "pydantic", "numpy", "pyzmq", "tenacity", "ClusterShell")
HEAVY = ("torch", "scipy", "sklearn", "pandas", "matplotlib", "prometheus_client", "starlette", "jinja2", "uvicorn",
         "textual", "safetensors", "cloudpickle", "aiohttp", "httptools", "uvloop", "optuna")  # fmt: skip
#: Python in which nothing of an extra can be imported, as after ``pip install slurm_hadar``
BARE = f"""
import sys
for name in {HEAVY!r}: sys.modules[name] = None
"""


def bare(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BARE + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def hadar(*arguments: str) -> subprocess.CompletedProcess[str]:
    return bare(f"from slurm_hadar.cli.main import main\nmain({list(arguments)!r})")


def test_the_base_is_small() -> None:
    """Nothing else comes with ``pip install slurm_hadar``."""
    always = [r for r in metadata.requires("slurm_hadar") or () if "extra ==" not in r]

    assert sorted(re.split(r"[^\w.-]", r)[0] for r in always) == sorted(BASE)


def test_the_job_side_needs_no_extra() -> None:
    """All of it is imported, as on a compute node; what needs PyTorch imports it in functions."""
    done = bare(
        "import importlib, pkgutil\n"
        "for room in ('runtime', 'submission'):\n"
        "    package = importlib.import_module('slurm_hadar.' + room)\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not found.name.endswith('sitecustomize'): importlib.import_module(found.name)\n"
    )

    assert done.returncode == 0, done.stderr


def test_commands_of_people_need_no_extra() -> None:
    """In one process: what cannot be imported cannot be by the next command either."""
    commands = ["config", "explain", "history", "logs", "predict", "queue", "serve", "speeds", "status", "submit"]
    done = bare(
        "from slurm_hadar.cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    try: main([command, '--help'])\n"
        "    except SystemExit as ended: print(command, ended.code)\n"
    )

    assert [line for line in done.stdout.splitlines() if line.startswith(tuple(commands))] == [
        f"{command} 0" for command in commands
    ], done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra", "module"),
    [
        (["run", "--once"], "controller", "prometheus_client"),
        (["simulate", "--trace", "recurring:jobs=3,seed=1", "--policy", "gavel_las"], "controller", "scipy"),
        (["web"], "web", "jinja2"),
        (["top"], "tui", "textual"),
    ],
)
def test_other_commands_name_their_extra(arguments: list[str], extra: str, module: str) -> None:
    """One line, no traceback."""
    done = hadar(*arguments)

    assert done.returncode == 1
    told = rf"hadar: this needs {module}\S*: pip install 'slurm_hadar\[{extra}\]'( or pip install \S+)?\n"
    assert re.fullmatch(told, done.stderr), done.stderr
