"""Traces for one GPU, read, written and drawn."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import TraceError
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.simulation.trace import NS, ShareJob, read_trace, write_trace
from slurm_hadar.sharing.simulation.workloads import MEAN_S, draw_trace, workloads

HEADER = "job_id,arrival_s,iterations,iter_s,persistent_bytes,ephemeral_bytes"


def _read(tmp_path: Path, text: str) -> tuple[ShareJob, ...]:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return read_trace(path)


def test_jobs_come_by_arrival(tmp_path: Path) -> None:
    jobs = _read(tmp_path, f"# mine\n{HEADER},class\nb,1.5,20,0.021,5,7,gold\na,0,1,1,0,0,\n")

    assert jobs == (
        ShareJob("a", 0, 1, NS, Demand(0, 0)),
        ShareJob("b", 1_500_000_000, 20, 21_000_000, Demand(5, 7), "gold"),
    )
    assert jobs[1].total_ns == 420_000_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; the first line must name columns: job_id, arrival_s"),
        (HEADER + "\n", "has no jobs, only a header; add a line for each job"),
        ("job_id,arrival_s\n", ":1: column iterations is missing"),
        (HEADER + ",colour\n", ":1: unknown column 'colour'; valid: job_id, arrival_s"),
        (HEADER + "\na,0,1,1,1\n", ":2: 5 fields where the header has 6"),
        (HEADER + "\n,0,1,1,1,1\n", ":2: job_id is empty"),
        (HEADER + "\na,-1,1,1,1,1\n", ":2: arrival_s must be from 0 to 1e.10, not '-1'"),
        (HEADER + "\na,1e11,1,1,1,1\n", ":2: arrival_s must be from 0 to 1e.10, not '1e11'"),
        (HEADER + "\na,0,1.5,1,1,1\n", ":2: iterations must be a whole number of at least 1, not '1.5'"),
        (HEADER + "\na,0,1e300,1,1,1\n", ":2: iterations must be at most 1e.15, not '1e300'"),
        (HEADER + "\na,0,1,0,1,1\n", ":2: iter_s must be above 0, not '0'"),
        (HEADER + "\na,0,1,1e-12,1,1\n", ":2: iter_s must be from 1e-09 to 1e.09, not '1e-12'"),
        (HEADER + "\na,0,1e15,1,1,1\n", ":2: 1000000000000000 iterations of 1 s: a job takes at most 1e.09 s"),
        (HEADER + "\na,0,1,nan,1,1\n", ":2: iter_s must be a number, not 'nan'"),
        (HEADER + "\na,0,1,1,-5,1\n", ":2: persistent_bytes must be a whole number of at least 0, not '-5'"),
        (HEADER + "\na,0,1,1,1,much\n", ":2: ephemeral_bytes must be a number, not 'much'"),
        (HEADER + "\na,0,1,1,1,1\na,0,1,1,1,1\n", ":3: job_id 'a' stands in the trace twice"),
        (HEADER + "\n" + "a" * 200_000 + ",0,1,1,1,1\n", ":2: is no line of a CSV table"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        _read(tmp_path, text)


def test_arrivals_may_be_epoch_seconds(tmp_path: Path) -> None:
    assert _read(tmp_path, f"{HEADER}\na,1764000000.5,1,1,0,0\n")[0].arrival_ns == 1_764_000_000_500_000_000


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace .*none\.csv does not exist"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path)


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 10**9), st.integers(1, 10**12), st.integers(0, 10**12),
                          st.sampled_from(["", "gold", 'a "b", c'])), min_size=1, max_size=5))  # fmt: skip
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int, int, int, str]]
) -> None:
    jobs = [
        ShareJob(f"j{i}", arrival, n, length, Demand(size, size // 2), group)
        for i, (arrival, n, length, size, group) in enumerate(sorted(drawn))
    ]

    assert list(_read(tmp_path_factory.mktemp("t"), write_trace(jobs))) == jobs


def test_the_workloads_are_those_that_were_measured() -> None:
    table = {w.name: w for w in workloads()}

    assert len(table) == 25
    assert table["inception3_50"].demand.alone_bytes == 4_775_000_000
    assert table["inception3_50"].iteration_ns == 362_000_000
    # the ends of the published range, and whose they are
    assert table["googlenet_25"].demand.persistent_bytes == 110_900_000
    assert table["resnet152_75"].demand.persistent_bytes == 822_200_000
    assert all(110_900_000 <= w.demand.persistent_bytes <= 822_200_000 for w in table.values())


def test_a_drawn_trace_is_that_of_its_seed() -> None:
    jobs = draw_trace(2000, 1)

    assert jobs[:100] == draw_trace(100, 1) != draw_trace(100, 2)
    assert statistics.fmean(job.total_ns / NS for job in jobs) == pytest.approx(MEAN_S, rel=0.1)
    assert all(job.arrival_ns == 0 for job in draw_trace(5, 1, gap_s=0))
