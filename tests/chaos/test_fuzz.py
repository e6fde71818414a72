"""Every parser, fed with a few hundred mutations of real samples; ``make fuzz`` tries many more."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from benchmarks.fuzz.run import fuzz
from benchmarks.fuzz.targets import Target, targets

CASES = 250
SLOW = {"journal file", "journal rows", "config file"}
with tempfile.TemporaryDirectory() as scratch:
    TARGETS = targets(Path(scratch))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name.replace(" ", "-"))
def test_only_clear_errors(target: Target, tmp_path: Path) -> None:
    """No input makes a parser fail in any other way than by one of our errors, in one line."""
    cases = CASES // 5 if target.name in SLOW else CASES

    result = fuzz(target, random.Random(f"1/{target.name}"), tmp_path, cases=cases)

    assert result.examples == [] and result.cases == cases


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name.replace(" ", "-"))
def test_samples_are_understood(target: Target, tmp_path: Path) -> None:
    """What the mutations begin from is right: else nothing but the first check of a parser would be tried."""
    if target.name == "graph of a comment":
        pytest.skip("what its samples name is not all there")
    for sample in target.samples:
        if target.name in ("fork directory", "config --set", "sacct", "trace, drawn"):
            continue  # each sample is of one kind, and is given to the readers of all kinds
        target.run(sample, tmp_path)


def test_a_crash_is_found(tmp_path: Path) -> None:
    """An error that is not ours, or of several lines, counts; so does what never ends."""

    def parse(data: bytes, _folder: Path) -> None:
        data.decode("ascii")

    result = fuzz(Target("bad", ("é".encode(),), parse), random.Random(1), tmp_path, cases=1)

    assert result.crashes == 1 and result.examples[0][1].startswith("UnicodeDecodeError")
