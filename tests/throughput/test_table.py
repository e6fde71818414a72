"""The reference table and its CSV format."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import TraceError
from slurm_hadar.throughput.table import FIELDS, Row, gavel_reference, read_table, reference, workload

HEADER = ",".join(FIELDS)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=8)
rows = st.builds(
    Row,
    names,
    st.one_of(st.none(), st.integers(1, 10**6)),
    st.integers(1, 64),
    names,
    st.booleans(),
    st.floats(1e-9, 1e9),
    names,
)


@given(st.lists(rows, max_size=10))
def test_round_trip(written: Any) -> None:
    """What is written in the format is read back to the last bit."""
    lines = [HEADER]
    for r in written:
        batch = "" if r.batch is None else r.batch
        place = "spread" if r.spread else "one_node"
        lines.append(f"{r.model},{batch},{r.gpus},{r.gpu_type},{place},{r.steps_per_s!r},{r.source}")
    assert read_table(lines).rows == tuple(written)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lm,20,1,v100,one_node", "5 fields"),
        ("lm,many,1,v100,one_node,3,x", "must be numbers"),
        ("lm,20,1,v100,one_node,fast,x", "must be numbers"),
        ("lm,20,0,v100,one_node,3,x", "must be positive"),
        ("lm,20,1,v100,one_node,-3,x", "must be positive"),
        ("lm,20,1,v100,one_node,nan,x", "must be positive"),
        ("lm,0,1,v100,one_node,3,x", "must be positive"),
        ("lm,-1,1,v100,one_node,3,x", "must be positive"),
        ("lm,20,9999999,v100,one_node,3,x", "gpus must be at most 1000000"),
        ("lm,20,1,v100,one_node,1e300,x", "steps_per_s at most 1e\\+09"),
        (f"{'m' * 200000},20,1,v100,one_node,3,x", "is no line of a CSV table: field larger"),
        ("lm,20,1,,one_node,3,x", "gpu_type is empty"),
        ("lm,20,1,v100,two_nodes,3,x", "one_node or spread"),
    ],
)
def test_bad_lines_name_file_and_line(line: str, message: str) -> None:
    """An error names the file, the line and what is wrong."""
    with pytest.raises(TraceError, match=rf"speeds\.csv:4: .*{message}"):
        read_table(["# comment", HEADER, "lm,20,1,v100,one_node,3,x", line], "speeds.csv")


def test_bad_header() -> None:
    """A file with other columns is refused at its header."""
    with pytest.raises(TraceError, match=r"f\.csv:1: header"):
        read_table(["model,rate"], "f.csv")


def test_shipped_table() -> None:
    """The package's table can be read and covers three types and seven families."""
    table = reference()
    assert {"v100", "p100", "k80"} <= set(table.gpu_types)
    assert "resnet50" in table.models
    assert table.steps_per_s("resnet18", 128, "v100") > table.steps_per_s("resnet18", 128, "k80")
    assert table.steps_per_s("resnet18", 7, "v100") is None
    assert list(table.batches("lm")) == sorted(b for b in table.batches("lm") if b is not None)


def test_workload_key() -> None:
    """The key names the batch size only where there is one."""
    assert (workload("lm", 20), workload("a3c", None)) == ("lm:20", "a3c")


def test_gavels_own_figures_differ_in_recommendation_only() -> None:
    """Its simulation has Recommendation slower on V100 than on P100; ours takes the physical figures."""
    ours, theirs = reference(), gavel_reference()
    assert len(ours.rows) == len(theirs.rows)
    assert {r.model for r in set(theirs.rows) ^ set(ours.rows)} == {"recommendation"}
    assert theirs.steps_per_s("recommendation", 2048, "v100") < theirs.steps_per_s("recommendation", 2048, "p100")
    assert ours.steps_per_s("recommendation", 2048, "v100") > ours.steps_per_s("recommendation", 2048, "p100")
