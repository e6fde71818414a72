"""Trace formats, read right and refused in one line that names file, line and field."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import TraceError
from slurm_hadar.model import JobState, Mix
from slurm_hadar.simulator.history import history_of_trace
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces import read_text, read_trace, table_csv
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import reference

DATA = Path(__file__).parents[1] / "data"
TABLE = reference()
GAVEL = "ResNet-18 (batch size 64)\tpython3 main.py\tdir\t--num_steps\t1\t8000\t8\t1\t-1.000000\t12.500000\n"


def read(text: str, **options: Any) -> Any:
    return read_text(text, "t.trace", TABLE, **options)


# Our CSV


def test_csv_with_the_least_columns() -> None:
    trace = read("job_id,arrival_s,model,gpus,steps\nb,5,resnet18,2,1000\na,0,lm,1,2000.5\n")

    assert trace.format == "csv" and [j.job_id for j in trace.jobs] == ["a", "b"]
    assert trace.jobs[1] == TraceJob("b", 5.0, "resnet18", None, 2, 1000.0)


def test_csv_whose_header_is_quoted_is_recognised() -> None:
    """As R's write.csv writes it, and pandas with QUOTE_ALL."""
    trace = read('"job_id","arrival_s","model","gpus","steps"\n"a",0,"lm",1,2000\n')

    assert trace.jobs == (TraceJob("a", 0.0, "lm", None, 1, 2000.0),)


def test_csv_with_everything() -> None:
    text = (
        "# a comment\njob_id,arrival_s,gpus,steps,model,batch,user,account,name,weight,deadline_s,mix,nodes,restart_s,"
        "steps_per_s:v100,steps_per_s:k80\n"
        'x,1,2-8,10,"m,1",64,eve,lab,night,2.5,3600,gated,1-2,0,4.5,\n'
    )

    (job,) = read(text).jobs

    assert job == TraceJob(
        "x",
        1.0,
        "m,1",
        64,
        2,
        10.0,
        (2, 4, 8),
        "eve",
        "lab",
        "night",
        2.5,
        3600.0,
        Mix.GATED,
        (1, 2),
        0.0,
        {"v100": 4.5},
    )


@pytest.mark.parametrize(
    ("gpus", "sizes"),
    [("3", ()), ("2-8", (2, 4, 8)), ("1-6", (1, 2, 4, 6)), ("4-4", ()), ("8+2+3", (2, 3, 8)), ("3-12", (3, 6, 12))],
)
def test_gang_sizes(gpus: str, sizes: tuple[int, ...]) -> None:
    (job,) = read(f"job_id,arrival_s,model,gpus,steps\na,0,lm,{gpus},1\n").jobs

    assert job.sizes == sizes and job.workers == (sizes or (int(gpus.partition("-")[0]),))[0]


HEADER = "job_id,arrival_s,model,gpus,steps,batch,mix,nodes,deadline_s,restart_s,steps_per_s:v100\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("job_id,arrival_s,gpus\n", "t.trace:1: column steps is missing"),
        ("job_id,arrival_s,gpus,steps,colour\n", "t.trace:1: unknown column 'colour'; valid: job_id, arrival_s"),
        ("job_id,arrival_s,gpus,steps,steps\n", "t.trace:1: a column stands there twice"),
        (HEADER + "a,0,lm,1\n", "t.trace:2: 4 fields where the header has 11"),
        (HEADER + "a,zero,lm,1,5,,,,,,\n", "t.trace:2: arrival_s must be a number, not 'zero'"),
        (HEADER + "a,-1,lm,1,5,,,,,,\n", "t.trace:2: arrival_s must not be negative"),
        (HEADER + "a,0,lm,0,5,,,,,,\n", "t.trace:2: gpus must be a whole number of at least 1, not '0'"),
        (HEADER + "a,0,lm,8-2,5,,,,,,\n", "t.trace:2: gpus must be N, N-M with N <= M or N+M+..., not '8-2'"),
        (HEADER + "a,0,lm,-1,5,,,,,,\n", "t.trace:2: gpus must be N, N-M with N <= M or N+M+..., not '-1'"),
        (HEADER + "a,0,lm,4-,5,,,,,,\n", "t.trace:2: gpus must be N, N-M with N <= M or N+M+..., not '4-'"),
        (HEADER + "a,0,lm,1000000000,5,,,,,,\n", "t.trace:2: gpus must be at most 1e+06, not '1000000000'"),
        (HEADER + "a,1e17,lm,1,5,,,,,,\n", "t.trace:2: arrival_s must be from 0 to 1e+10, not '1e17'"),
        (HEADER + "a,0,lm,1,1e300,,,,,,\n", "t.trace:2: steps must be from 1e-09 to 1e+15, not '1e300'"),
        (HEADER + "a,0,lm,1,5,,,,,,1e300\n", "t.trace:2: steps_per_s:v100 must be from 1e-09 to 1e+09, not '1e300'"),
        (HEADER + "a,0,lm,1,5,,,,,,1e-300\n", "t.trace:2: steps_per_s:v100 must be from 1e-09"),
        (HEADER + "a,0,lm,1,5,,,,,1e300,\n", "t.trace:2: restart_s must be from 0 to 1e+06, not '1e300'"),
        (HEADER + "a,0,lm,1.5,5,,,,,,\n", "t.trace:2: gpus must be a whole number"),
        (HEADER + "a,0,lm,1,0,,,,,,\n", "t.trace:2: steps must be above 0, not '0'"),
        (HEADER + "a,0,lm,1,nan,,,,,,\n", "t.trace:2: steps must be a number, not 'nan'"),
        (HEADER + "a,0,lm,1,5,x,,,,,\n", "t.trace:2: batch must be a number, not 'x'"),
        (HEADER + "a,0,lm,1,5,,maybe,,,,\n", "t.trace:2: mix must be one of never, gated, balanced, not 'maybe'"),
        (HEADER + "a,0,lm,1,5,,,3-2,,,\n", "t.trace:2: nodes must be N or N-M with N <= M, not '3-2'"),
        (HEADER + "a,0,lm,1,5,,,,0,,\n", "t.trace:2: deadline_s must be above 0, not '0'"),
        (HEADER + "a,0,lm,1,5,,,,,-2,\n", "t.trace:2: restart_s must not be negative"),
        (
            HEADER.replace("batch", "steps_per_s:v100:1") + "a,0,lm,1,5,1,,,,,1\n",
            "t.trace:2: two columns have a rate of 1 GPUs of v100",
        ),
        (
            HEADER.replace("batch", "steps_per_s:") + "a,0,lm,1,5,1,,,,,1\n",
            "t.trace:2: column 'steps_per_s:' names no GPU type; write steps_per_s:TYPE",
        ),
        (HEADER + "a,0,lm,1,1_0,,,,,,1\n", "t.trace:2: steps must be a number, not '1_0'"),
        (HEADER + "a,0,lm,1,5,,,,,,fast\n", "t.trace:2: steps_per_s:v100 must be a number, not 'fast'"),
        (HEADER + "a,0,,1,5,,,,,,\n", "t.trace:2: model is empty, and there is no steps_per_s:TYPE column to go by"),
        (HEADER + ",0,lm,1,5,,,,,,\n", "t.trace:2: job_id is empty"),
        (HEADER + "a,0,lm,1,5,,,,,,\n\na,0,lm,1,5,,,,,,\n", "t.trace:4: job_id 'a' stands in the trace twice"),
        (HEADER.replace("batch", "movable") + "a,0,lm,1,5,maybe,,,,,\n", "t.trace:2: movable must be one of yes, no"),
        (HEADER.replace("batch", "start_s") + "a,0,lm,1,5,-1,,,,,\n", "t.trace:2: start_s must not be negative"),
        (
            HEADER.replace("batch", "steps_per_s:k80:4") + "a,0,lm,1-2,5,9,,,,,\n",
            "t.trace:2: steps_per_s:k80:4 has a rate, but the job has no gang of 4",
        ),
        (HEADER, "trace t.trace has no jobs"),
        ("", "trace t.trace: format not recognised by its first line; name it (csv, gavel, sacct)"),
        ("hello\n", "trace t.trace: format not recognised"),
    ],
)
def test_bad_csv(text: str, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(text)

    assert str(caught.value).startswith(error) and "\n" not in str(caught.value)


words = st.text("abcxyz019 .-_'|\"", max_size=8).map(str.strip)


@given(
    st.lists(
        st.builds(
            TraceJob,
            st.uuids().map(str),
            st.floats(0, 1e9),
            st.sampled_from(("lm", "resnet18", "my,model")),
            st.none() | st.integers(1, 4096),
            st.just(2),
            st.floats(1e-3, 1e12),
            st.sampled_from(((), (2, 5, 9))),
            words,
            words,
            words,
            st.floats(0.01, 100),
            st.none() | st.floats(1, 1e6),
            st.sampled_from(list(Mix)),
            st.none() | st.just((1, 3)),
            st.none() | st.floats(0, 1e4),
            st.dictionaries(st.sampled_from(("v100", "k80")), st.floats(0.01, 100)),
            start_s=st.none() | st.floats(0, 1e4),
            movable=st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.dictionaries(
        st.sampled_from((5, 9)), st.dictionaries(st.sampled_from(("v100", "k80")), st.floats(0.01, 100), min_size=1)
    ),
)
def test_what_is_written_is_read_again(jobs: list[TraceJob], scaled: dict[int, dict[str, float]]) -> None:
    jobs = [replace(job, scaled=scaled) if job.sizes else job for job in jobs]
    trace = Trace("t.trace", "csv", tuple(sorted(jobs, key=lambda j: j.arrival_s)))

    assert read(table_csv.write(trace)) == trace


_seconds = st.none() | st.floats(1, 1e6)


@given(
    st.sampled_from(("1", "#1", "#1,2", 'a"b')),
    st.builds(dict, asked=st.sampled_from(("", "v100")), cpus=st.sampled_from((0.0, 8.0)), memory_gb=st.just(64.5),
              partition=st.sampled_from(("", "gpu")), limit_s=_seconds | st.just(math.inf), ran_s=_seconds,
              wanted=st.just("k80"), waited_s=_seconds, state=st.sampled_from((JobState.DONE, JobState.FAILED))),
)  # fmt: skip
def test_what_really_happened_is_kept(job_id: str, facts: dict[str, Any]) -> None:
    """Also of jobs whose ids look like comments."""
    trace = Trace("t.trace", "csv", (TraceJob(job_id, 0.0, "lm", None, 1, 9.0, **facts),))

    assert read(table_csv.write(trace)) == trace


@pytest.mark.parametrize(("name", "kept"), [("one\ntwo\rthree", "one two three"), ("one\u2028two\x0cthree", None)])
def test_a_line_end_in_a_name_is_no_end_of_a_job(tmp_path: Path, name: str, kept: str | None) -> None:
    """Users name their jobs, and accounts have what they wrote."""
    path, job = tmp_path / "t.csv", TraceJob("1", 0.0, "lm", None, 1, 9.0, name=name)
    path.write_text(table_csv.write(Trace("t.trace", "csv", (job,))), encoding="utf-8")

    assert read_trace(path, TABLE).jobs == (replace(job, name=kept or name),)


@pytest.mark.parametrize("asked", [2, 5, 9])
def test_the_size_that_an_elastic_job_asked_for_is_kept(asked: int) -> None:
    """Steps, batch and rates are of it."""
    scaled = {n: {"k80": float(n)} for n in (2, 5, 9) if n != asked}
    job = TraceJob("1", 0.0, "lm", 8, asked, 9.0, (2, 5, 9), steps_per_s={"k80": 1.0}, scaled=scaled)
    trace = Trace("t.trace", "csv", (job,))

    assert read(table_csv.write(trace)) == trace
    with pytest.raises(TraceError, match="asked_gpus=4 is not one of the job's gang sizes"):
        read("job_id,arrival_s,gpus,steps,model,asked_gpus\n1,0,2+5,9,lm,4\n")


def test_accounts_can_be_kept() -> None:
    """Jobs that name no model by the speeds that they were given."""
    trace = read_trace(str(DATA / "sacct.txt"), TABLE)
    rates = Rates(TABLE, TABLE.gpu_types)
    kept = read(table_csv.write(replace(trace, jobs=tuple(map(rates.rated, trace.jobs)))))

    assert [j.job_id for j in kept.jobs if j.steps_per_s] == ["3", "7_1"]
    assert [replace(j, steps_per_s={}) for j in kept.jobs] == list(trace.jobs)
    assert {j.job_id: j.state for j in kept.jobs} == {"1": JobState.DONE, "3": JobState.FAILED, "7_1": JobState.DONE}
    for one, other in zip(trace.jobs, kept.jobs, strict=True):
        speeds, same = rates.of(one, one.workers), rates.of(other, other.workers)
        assert {t: s.steps_per_s for t, s in speeds.items()} == {t: s.steps_per_s for t, s in same.items()}


def test_what_was_cut_short_teaches_nothing() -> None:
    """Where accounts are read as a trace, as where they are read as accounts."""
    history = history_of_trace(read_trace(str(DATA / "sacct.txt"), TABLE), TABLE)

    assert [job.job_id for job in history if job.teaches] == ["1", "7_1"]


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("state", "killed", "state must be one of done, failed, not 'killed'"),
        ("limit_s", "never", "limit_s"),
        ("cpus", "-1", "cpus"),
        ("waited_s", "nan", "waited_s"),
    ],
)
def test_what_cannot_have_happened(column: str, value: str, error: str) -> None:
    with pytest.raises(TraceError, match=f"t.trace:2: {error}"):
        read(f"job_id,arrival_s,model,gpus,steps,{column}\na,0,lm,1,9,{value}\n")


# Gavel's


def test_gavels_format() -> None:
    """Steps are those of the whole job: total_steps over the workers; an SLO is so many times the run time on V100s."""
    text = GAVEL + "A3C\tc\td\t-n\t0\t100\t1\t2.5\t1.200000\t20\n" + GAVEL.replace("-1.0", "10.0")

    trace = read(text)

    assert trace.format == "gavel"
    assert trace.jobs == (
        TraceJob("0", 12.5, "resnet18", 64, 8, 1000.0),
        TraceJob(
            "2", 12.5, "resnet18", 64, 8, 1000.0, deadline_s=10000.0 / TABLE.steps_per_s("resnet18", 64, "v100", 8)
        ),
        TraceJob(
            "1", 20.0, "a3c", None, 1, 100.0, weight=2.5, deadline_s=120.0 / TABLE.steps_per_s("a3c", None, "v100", 1)
        ),
    )
    assert trace.assumptions == ("deadlines are the trace's SLOs times the run times on v100",)


def test_an_slo_of_gavels_is_no_deadline_where_the_run_time_is_not_known() -> None:
    trace = read(GAVEL.replace("ResNet-18 (batch size 64)", "Mine").replace("-1.0", "2.0"))

    assert trace.jobs[0].deadline_s is None
    assert trace.assumptions == ("jobs with an SLO of which no rate on v100 is known have no deadline",)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("8000", "many"), "t.trace:2: total_steps must be a number, not 'many'"),
        (("\t8\t", "\t0\t"), "t.trace:2: scale_factor must be a whole number of at least 1, not '0'"),
        (("batch size 64", f"batch size {'9' * 5000}"), "t.trace:2: job_type: 'ResNet-18 (batch size 999"),
        (("batch size 64", "batch size 0"), "t.trace:2: job_type: 'ResNet-18 (batch size 0)': the batch size must be"),
        (("\t12.5", ""), "t.trace:2: 9 fields where 10 are expected, separated by tabs"),
        (("8000", "1e300"), "t.trace:2: total_steps must be from 1e-09 to 1e+15, not '1e300'"),
        (("\t8\t", "\t1e9\t"), "t.trace:2: scale_factor must be at most 1e+06, not '1e9'"),
        (("12.500000", "-3"), "t.trace:2: arrival_time must not be negative"),
        (("\t8\t1\t", "\t8\t0\t"), "t.trace:2: priority_weight must be above 0, not '0'"),
        (("ResNet-18 (batch size 64)", ""), "t.trace:2: job_type is empty"),
    ],
)
def test_bad_lines_of_gavels(change: tuple[str, str], error: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(GAVEL + GAVEL.replace(*change))

    assert str(caught.value).startswith(error)


def test_the_format_can_be_named() -> None:
    """Then errors are about that format."""
    with pytest.raises(TraceError, match="1 fields where 10 are expected"):
        read("job_id,arrival_s,gpus,steps\n", format="gavel")


# Drawn


def test_drawn_traces() -> None:
    """As many as asked, at their rate, the same for the same seed, and shares near the stated ones."""
    trace = read_trace("philly:jobs=2000,seed=3,multi=yes,rate=10", TABLE)

    again = read_trace("philly:seed=3,rate=10,jobs=2000", TABLE)
    workers = [j.workers for j in trace.jobs]
    assert trace.jobs == again.jobs != read_trace("philly:jobs=2000,seed=4,rate=10", TABLE).jobs
    for size, share in ((1, 0.7), (2, 0.1), (4, 0.15), (8, 0.05)):
        assert workers.count(size) / 2000 == pytest.approx(share, abs=0.03)
    assert trace.jobs[-1].arrival_s == pytest.approx(2000 / 10 * 3600, rel=0.1)
    rates = Rates(TABLE, ("v100",))
    hours = [j.steps / rates.of(j, j.workers)["v100"].steps_per_s / 3600 for j in trace.jobs]
    assert 0.5 <= min(hours) < 0.6 and 150 < max(hours) <= 167
    assert sum(h > 1000 / 60 for h in hours) / 2000 == pytest.approx(0.2, abs=0.03)
    assert {j.model for j in trace.jobs if j.workers > 1} == {"resnet18", "resnet50", "transformer", "lm"}


def test_drawn_traces_without_gangs_or_gaps() -> None:
    trace = read_trace("philly:jobs=50,multi=no", TABLE, seed=7)

    assert trace.jobs == read_trace("philly:jobs=50,multi=no,seed=7", TABLE, seed=1).jobs
    assert {j.workers for j in trace.jobs} == {1} and {j.arrival_s for j in trace.jobs} == {0.0}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("philly:job=3", "philly:job=3: 'job=3' is not one of jobs=N"),
        ("philly:jobs=0", "jobs must be a whole number of at least 1"),
        ("philly:jobs=1000000000", "jobs must be at most"),
        ("philly:jobs=10,rate=1e-300", "rate=1e-300: 10 jobs take over"),
        ("philly:multi=perhaps", "multi must be yes or no"),
        ("philly:rate=-1", "rate must not be negative"),
    ],
)
def test_bad_wishes(text: str, error: str) -> None:
    with pytest.raises(TraceError, match=error):
        read_trace(text, TABLE)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(TraceError, match=r"trace .*/none does not exist"):
        read_trace(tmp_path / "none", TABLE)
    with pytest.raises(TraceError, match=r"trace .*/binary cannot be read"):
        read_trace(tmp_path / "binary", TABLE)
