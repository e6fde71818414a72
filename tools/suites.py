"""Run the test suite: trainings, what else needs no Slurm, and what does; at the end what failed once more by itself.

    python -m tools.suites [--thorough] [--only SUITE] [--by COMMAND] [PYTEST OPTION ...]

First come the ``trainings`` (and what builds a package or drives a browser), then the tests of ``live``, which mostly
wait for their private Slurm clusters, :data:`CLUSTERS` of them side by side; what both leave of the cores is for
``units``, which compute. These alone are measured for coverage: to trace a training takes half as long again. Tests
that are marked ``thorough`` run with ``--thorough`` only. Tests watch real processes, which a busy machine can starve:
what fails is run once more when all else is done. Nothing is hidden: all reports are printed, and who fails twice has
failed. ``--by`` runs the live tests by a command, such as ``tools/slurm_suite.sh 24.11``, one after another.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

CLUSTERS = 4
BUILD = Path("build/tests")
# whole files, in the order of tests/conftest.py: their tests share a cluster, or what takes long to import
_BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
_ANY = ("--dist", "worksteal")
_NOT_THOROUGH = " and not thorough"
_SLOWEST = 15  # tests of each suite whose time is shown
_FAILED = 1  # pytest's exit code for "some tests failed"; others are faults of the run
_LOW, _LITTLE = 19, 5  # niceness of what runs behind, and where it cannot be taken back


@dataclass(frozen=True)
class Suite:
    """A part of the tests: the marker that chooses it, how its first run is spread, what runs it, and whether it runs
    behind those that follow, at low priority."""

    name: str
    marker: str
    spread: tuple[str, ...]
    runner: tuple[str, ...]
    behind: bool = False

    def with_thorough(self) -> Suite:
        """The same with what is marked ``thorough``."""
        return replace(self, marker=self.marker.removesuffix(_NOT_THOROUGH))

    def command(self, *options: str) -> list[str]:
        # a cache of its own, since each recalls what failed in it
        cache = f"cache_dir={BUILD / self.name}"
        return [*self.runner, "pytest", "-m", self.marker, "-o", cache, f"--durations={_SLOWEST}", *options]

    @property
    def report(self) -> Path:
        """What it printed behind another."""
        return BUILD / f"{self.name}.txt"


def units() -> Suite:
    """What computes, with coverage."""
    marker, runner = "not slurm and not torch and not built", (sys.executable, "-m", "coverage", "run", "-m")
    return Suite("units", marker + _NOT_THOROUGH, (*_all_cores(), *_ANY), runner, behind=True)


def trainings() -> Suite:
    """PyTorch, packages, documentation, browser."""
    marker, runner = "not slurm and (torch or built)" + _NOT_THOROUGH, (sys.executable, "-m")
    return Suite("trainings", marker, (*_all_cores(), *_BY_FILE), runner)


def _all_cores() -> tuple[str, str]:
    """And one more, since some tests wait."""
    return "-n", str(len(os.sched_getaffinity(0)) + 1)


def live(by: str) -> Suite:
    """End to end on private clusters."""
    spread = () if by else ("-n", str(CLUSTERS), *_BY_FILE)
    return Suite("live", "slurm" + _NOT_THOROUGH, spread, (*by.split(), sys.executable, "-m"))


def every(by: str = "", thorough: bool = False) -> list[Suite]:
    """All suites, in their order."""
    suites = [units(), trainings(), live(by)]
    return [suite.with_thorough() for suite in suites] if thorough else suites


def run(suites: list[Suite], options: list[str]) -> int:
    """The exit code: 0, or that of the first suite that failed twice."""
    BUILD.mkdir(parents=True, exist_ok=True)
    started: dict[str, subprocess.Popen[bytes]] = {}
    codes: dict[str, int] = {}
    try:
        for suite in suites:
            if suite.behind and suite is not suites[-1]:
                started[suite.name] = _start(suite, options)
            else:
                codes[suite.name] = subprocess.call(suite.command(*suite.spread, *options))
        for suite in suites:
            if suite.name in started:
                _prefer(started[suite.name].pid, 0)
                codes[suite.name] = started[suite.name].wait()
                print(suite.report.read_text(), end="", flush=True)
    finally:
        for process in started.values():
            process.terminate()
    ends = [_again(suite, codes[suite.name], options) for suite in suites]
    return next((code for code in ends if code), 0)


def _start(suite: Suite, options: list[str]) -> subprocess.Popen[bytes]:
    with suite.report.open("wb") as file:
        return subprocess.Popen(
            suite.command(*suite.spread, *options),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _prefer(os.getpid(), _LOW),  # this process has no threads
        )


def _prefer(session: int, nice: int) -> None:
    """Give the processes of a session that niceness. Where sessions have equal shares of the cores, as is usual, it
    counts within one alone, and each job of Slurm is one: so that of the session is set too. Only root may take back
    what was given up, so nobody else gives up much."""
    nice = nice if os.geteuid() == 0 else _LITTLE
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, session, nice)
    with contextlib.suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(str(nice))


def _again(suite: Suite, code: int, options: list[str]) -> int:
    if code != _FAILED:
        return code
    print(f"== what failed of {suite.name}, once more ==", flush=True)
    return subprocess.call(suite.command("--last-failed", "--last-failed-no-failures", "none", *options))


def main(words: list[str] | None = None) -> int:
    """Run what the command line names; everything by default."""
    parser = argparse.ArgumentParser(description="Run the tests; see the module's docstring.", allow_abbrev=False)
    parser.add_argument("--thorough", action="store_true", help="also what is marked so")
    parser.add_argument("--only", choices=[suite.name for suite in every()], help="default: all")
    parser.add_argument("--by", default="", metavar="COMMAND", help="run the live tests by this command")
    known, options = parser.parse_known_args(words)
    return run([suite for suite in every(known.by, known.thorough) if known.only in (None, suite.name)], options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
