"""The tables of Alibaba's PAI trace, in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.history import history_of_trace
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces import read_text, read_trace
from slurm_hadar.simulator.traces.pai import GROUPS, JOBS, TASKS
from slurm_hadar.throughput.table import reference

TABLE = reference()
# 4550879 is the README's own example; in UTC+8 it is 7 min 59 s after a midnight
JOB_ROWS = """a,i1,ann,Terminated,4550879.0,4551416.0
b,i2,ann,Terminated,4550979.0,4551979.0
c,i3,bob,Failed,4550979.0,4551979.0
d,i4,bob,Terminated,4551000.0,
e,i5,bob,Terminated,4551000.0,4552000.0
f,i6,bob,Terminated,4560000.0,4561000.0
g,i7,eve,Running,4560000.0,
"""
TASK_ROWS = """a,tensorflow,1.0,Terminated,4550900.0,4551416.0,600.0,29.296875,50.0,MISC
b,ps,2.0,Terminated,4550980.0,4551979.0,400.0,10.0,,
b,worker,3.0,Terminated,4550999.0,4551979.0,600.0,20.0,100.0,V100M32
b,evaluator,1.0,Terminated,4550989.0,4551979.0,600.0,20.0,50.0,T4
e,worker,1.0,Terminated,4551000.0,4552000.0,600.0,20.0,,CPU
f,worker,1.0,Terminated,,4561000.0,600.0,20.0,100.0,P100
c,worker,1.0,Failed,4550979.0,4551979.0,600.0,20.0,100.0,P100
"""
TAG_ROWS = """i1,ann,,g1,ctr
i2,ann,V100,g2,
i9,zoe,,g3,
"""


@pytest.fixture
def tables(tmp_path: Path) -> Any:
    """Write the three tables; any of them may be changed, or left out with None."""

    def write(jobs: str | None = JOB_ROWS, tasks: str | None = TASK_ROWS, tags: str | None = TAG_ROWS) -> Path:
        for name, text in (("job", jobs), ("task", tasks), ("group_tag", tags)):
            if text is not None:
                (tmp_path / f"pai_{name}_table.csv").write_text(text)
        return tmp_path

    return write


def test_jobs_of_the_tables(tables: Any) -> None:
    """Terminated jobs with GPUs; waits and run times as they were; what was left out is told."""
    trace = read_trace(tables(), TABLE, "pai")

    a, b, f = trace.jobs
    assert [j.job_id for j in trace.jobs] == ["a", "b", "f"] and trace.format == "pai"
    assert a.arrival_s == 7 * 60 + 59 and b.arrival_s == a.arrival_s + 100
    assert (a.workers, a.wanted, a.waited_s, a.ran_s) == (1, "k80", 21, 516)
    assert (b.workers, b.wanted, b.waited_s, b.ran_s) == (4, "v100", 10, 990)  # 3 and a half GPUs
    assert (f.workers, f.wanted, f.waited_s, f.ran_s) == (1, "p100", 0, 1000)
    assert [(j.user, j.group, j.asked) for j in trace.jobs] == [
        ("ann", "g1", ""),
        ("ann", "g2", "v100"),
        ("bob", "", ""),
    ]
    assert (b.cpus, b.memory_gb) == (8 + 18 + 6, 20 + 60 + 20)
    told = "\n".join(trace.assumptions)
    for line in (
        "1 of 3 jobs belong to no group",
        "1 jobs are left out: they lack a time",
        "1 jobs are left out: they had no GPU",
        "1 jobs are left out: they did not end well (Failed)",
        "1 jobs are left out: they did not end well (Running)",
    ):
        assert line in told


def test_work_is_run_time_times_speed(tables: Any) -> None:
    """Of a model that hangs on the group alone."""
    trace = read_trace(tables(), TABLE)
    more = read_trace(
        tables(
            JOB_ROWS + "h,i8,ann,Terminated,4570000,4570100\n",
            TASK_ROWS + "h,w,1,Terminated,4570000,4570100,1,1,100,V100\n",
            TAG_ROWS + "i8,ann,,g1,\n",
        ),
        TABLE,
    )

    rates = Rates(TABLE, ("v100", "p100", "k80"))
    for job in trace.jobs:
        assert job.model and job.steps / rates.of(job, job.workers)[job.wanted].steps_per_s == pytest.approx(job.ran_s)
    assert more.jobs[:3] == trace.jobs
    assert (more.jobs[3].model, more.jobs[3].batch) == (trace.jobs[0].model, trace.jobs[0].batch)


def test_with_column_names(tables: Any) -> None:
    """The published files have none; copies that people make of them do."""
    plain = read_trace(tables(), TABLE)
    heads = [",".join(c) + "\n" for c in (JOBS, TASKS, GROUPS)]

    assert read_trace(tables(heads[0] + JOB_ROWS, heads[1] + TASK_ROWS, heads[2] + TAG_ROWS), TABLE) == plain


def test_without_tags(tables: Any) -> None:
    trace = read_trace(tables(tags=None), TABLE)

    assert {j.group for j in trace.jobs} == {""}
    assert "there is no pai_group_tag_table.csv: no job belongs to a group" in trace.assumptions


def test_it_is_history(tables: Any) -> None:
    """With the ends that it really had."""
    a, b, _ = history_of_trace(read_trace(tables(), TABLE), TABLE)

    assert (a.user, a.group, a.gpus, a.teaches) == ("ann", "g1", 1, True)
    assert (b.start, b.end, b.gpu_type) == (b.submit + 10, b.submit + 1000, "v100")
    assert a.alone_s < 516  # it ran on the slowest type


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"jobs": "a,i1,ann,Terminated,1\n"}, "pai_job_table.csv:1: 5 fields where 6 are expected: job_name,inst_id"),
        (
            {"jobs": "x,i1,ann,Terminated,1,9\ny,i1,ann,Terminated,soon,2\n"},
            "2: start_time must be a number",
        ),
        ({"jobs": "a,i1,ann,Terminated,-1,2\n"}, "pai_job_table.csv:1: start_time must not be negative"),
        ({"jobs": ",i1,ann,Terminated,1,2\n"}, "pai_job_table.csv:1: job_name is empty"),
        ({"jobs": JOB_ROWS + JOB_ROWS}, "pai_job_table.csv:8: job_name 'a' stands in the table twice"),
        ({"jobs": "a,i1,ann,Failed,1,2\n"}, r"has no jobs: 1 jobs are left out: they did not end well \(Failed\)"),
        ({"tasks": "a,t,one,Terminated,1,2,3,4,5,V100\n"}, "pai_task_table.csv:1: inst_num must be a number"),
        ({"tasks": "a,t,1,Terminated,1,2,3,4,inf,V100\n"}, "pai_task_table.csv:1: plan_gpu must be a number"),
        (
            {"tasks": "a,t,1e300,Terminated,1,2,3,4,5,V100\n"},
            "pai_task_table.csv:1: inst_num must be from 0 to 1e\\+10",
        ),
        ({"tasks": "a,t,1,Terminated,1,2,3,4,1e10,V100\n"}, "job a has over 1000000 GPUs"),
        ({"tags": "i1,ann,g1\n"}, "pai_group_tag_table.csv:1: 3 fields where 5"),
    ],
)
def test_bad_tables(tables: Any, change: dict[str, str], error: str) -> None:
    with pytest.raises(TraceError, match=error):
        read_trace(tables(**change), TABLE)


def test_missing_tables(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"pai_job_table\.csv does not exist"):
        read_trace(tmp_path, TABLE)
    with pytest.raises(TraceError, match="must be a folder with pai_job_table"):
        read_trace(tmp_path / "none", TABLE, "pai")
    with pytest.raises(TraceError, match="a PAI trace is a folder of tables"):
        read_text("", "stdin", TABLE, "pai")
