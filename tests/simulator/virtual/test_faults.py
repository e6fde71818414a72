"""Nodes that are away: from a file, and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.virtual.faults import Outage, draw_faults, read_faults


def test_faults_from_a_file(tmp_path: Path) -> None:
    """In order of time; outages of a node that overlap are one."""
    path = tmp_path / "f.csv"
    path.write_text("# planned\nnode,down_s,up_s\nb,50,60\na,100,200\na,150,300\n")

    assert read_faults(path, ["a", "b"], 10.0).outages == (Outage("b", 50, 60), Outage("a", 100, 300))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "f.csv: is empty; the first line must name columns: node, down_s, up_s"),
        ("node,down_s\n", "f.csv:1: column up_s is missing"),
        ("node,down_s,up_s\na,1\n", "f.csv:2: 2 fields where the header has 3"),
        ("node,down_s,up_s\nz,1,2\n", "f.csv:2: node 'z' is not in the cluster; it has a ... b"),
        ("node,down_s,up_s\na,5,2\n", "f.csv:2: down_s must be at least 0 and before up_s"),
        ("node,down_s,up_s\na,x,2\n", "f.csv:2: down_s must be a number"),
        ("node,down_s,up_s\na,1,2" + 200_000 * "0" + "\n", "f.csv:2: is no line of a CSV table"),
    ],
)
def test_bad_fault_files(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text(text)

    with pytest.raises(TraceError) as caught:
        read_faults(path, ["a", "b"])

    assert error in str(caught.value)


def test_drawn_faults() -> None:
    """A node is away its share of the time, the same for the same seed, whoever else is in the cluster."""
    faults = draw_faults(["a", "b"], 900.0, 100.0, 1, 1e6)

    away = sum(o.up_s - o.down_s for o in faults.outages if o.node == "a")
    assert away / 1e6 == pytest.approx(0.1, abs=0.02)
    alone = draw_faults(["a"], 900.0, 100.0, 1, 1e6)
    assert [o for o in faults.outages if o.node == "a"] == list(alone.outages)
    with pytest.raises(TraceError, match="must be above 0"):
        draw_faults(["a"], 0.0, 1.0, 0, 1e6)
