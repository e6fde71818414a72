"""Run the test suite: what needs no Slurm, then what does, and at the end what failed once more by itself.

    python -m tools.suites [--only SUITE] [--by COMMAND] [PYTEST OPTION ...]

Suite ``units`` is measured for coverage; the tests of ``live`` mostly wait for their private Slurm clusters,
:data:`CLUSTERS` of them side by side. Both watch real processes, which a busy machine can starve: what fails is run
once more when all else is done. (Both at once starved browsers and trainings.)
Nothing is hidden: both reports are printed, and who fails twice has failed. ``--by`` runs the live tests by a command,
such as ``tools/slurm_suite.sh 24.11``, one after the other.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CLUSTERS = 3
BUILD = Path("build/tests")
_FAILED = 1  # pytest's exit code for "some tests failed"; others are faults of the run


@dataclass(frozen=True)
class Suite:
    """A part of the tests: the marker that chooses it, how its first run is spread, what runs it."""

    name: str
    marker: str
    spread: tuple[str, ...]
    runner: tuple[str, ...]

    def command(self, *options: str) -> list[str]:
        # a cache of its own, since each recalls what failed in it
        cache = f"cache_dir={BUILD / self.name}"
        return [*self.runner, "pytest", "-m", self.marker, "-o", cache, *options]


def units() -> Suite:
    """All that needs no Slurm."""
    runner = (sys.executable, "-m", "coverage", "run", "-m")
    return Suite("units", "not slurm", ("-n", "auto", "--dist", "worksteal"), runner)


def live(by: str) -> Suite:
    """End to end on private clusters."""
    spread = () if by else ("-n", str(CLUSTERS), "--dist", "loadfile")
    return Suite("live", "slurm", spread, (*by.split(), sys.executable, "-m"))


def run(suites: list[Suite], options: list[str]) -> int:
    """The exit code: 0, or that of the first suite that failed twice."""
    BUILD.mkdir(parents=True, exist_ok=True)
    codes = [subprocess.call(suite.command(*suite.spread, *options)) for suite in suites]
    codes = [_again(suite, code, options) for suite, code in zip(suites, codes, strict=True)]
    return next((code for code in codes if code), 0)


def _again(suite: Suite, code: int, options: list[str]) -> int:
    if code != _FAILED:
        return code
    print(f"== what failed of {suite.name}, once more ==", flush=True)
    return subprocess.call(suite.command("--last-failed", "--last-failed-no-failures", "none", *options))


def main(words: list[str] | None = None) -> int:
    """Run what the command line names; everything by default."""
    parser = argparse.ArgumentParser(description="Run the tests; see the module's docstring.", allow_abbrev=False)
    parser.add_argument("--only", choices=["units", "live"], help="default: both")
    parser.add_argument("--by", default="", metavar="COMMAND", help="run the live tests by this command")
    known, options = parser.parse_known_args(words)
    return run([suite for suite in (units(), live(known.by)) if known.only in (None, suite.name)], options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
