"""What sacct tells, as sites export it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.simulator.traces.accounting import read
from slurm_hadar.slurm.accounting import FIELDS, command, parse_accounting
from slurm_hadar.throughput.table import reference

HEADER = "|".join(FIELDS)


def line(job: str = "7", day: int = 1, elapsed: str = "3600", gpu_type: str = "v100", **fields: str) -> str:
    known = {"JobID": job, "User": "ann", "State": "COMPLETED", "Submit": f"2026-11-0{day}T10:00:00", **fields}
    known |= {"Start": f"2026-11-0{day}T11:00:00", "End": f"2026-11-0{day}T12:00:00", "ElapsedRaw": elapsed}
    known |= {"AllocTRES": f"cpu=4,gres/gpu:{gpu_type}=1,gres/gpu=1,node=1", "NodeList": f"{gpu_type}-1"}
    return "|".join(known.get(field, "") for field in FIELDS)


def text(*lines: str, end: str = "\n") -> str:
    return end.join([HEADER, *lines, ""])


def test_each_run_counts_on_its_own_gpus() -> None:
    """Ten hours on a k80 are not ten hours on the v100 on which the job began."""
    comment = "hadar:model=resnet50,batch=64"
    table = reference()

    def steps(*runs: str) -> float:
        (job,) = read(text(*runs), "sacct", table).jobs
        return job.steps

    fast = line(elapsed="3600", State="REQUEUED", Comment=comment)
    slow = line(day=2, elapsed="36000", gpu_type="k80", Comment=comment)

    assert steps(fast, slow) == pytest.approx(steps(fast) + steps(slow))
    assert steps(fast, slow) < 0.9 * 11 * steps(fast)


def test_exports_that_overlap() -> None:
    """The same record twice, and another header between."""
    once = parse_accounting(text(line(State="REQUEUED"), line(day=2)))

    assert once[0].elapsed_s == 7200
    assert (
        parse_accounting(text(line(State="REQUEUED"), line(day=2), HEADER, line(day=2), line(State="REQUEUED"))) == once
    )


def test_numbers_that_came_again() -> None:
    """Where Slurm has begun to count jobs anew, another's job is no other run of the same one."""
    first, put_back, again = line(User="bob", State="NODE_FAIL"), line(day=2, User="bob"), line(day=3, elapsed="60")
    found = parse_accounting(text(again, line(day=4, elapsed="30", JobName="other"), put_back, first))

    assert [(j.job_id, j.user, j.elapsed_s, j.name) for j in found] == [
        ("7#1", "bob", 7200.0, ""), ("7#2", "ann", 60.0, ""), ("7", "ann", 30.0, "other")
    ]  # fmt: skip
    assert [job.job_id for job in read(text(again, first), "sacct", reference()).jobs] == ["7#1", "7"]


def test_a_run_under_a_new_name_is_a_run_all_the_same() -> None:
    (job,) = parse_accounting(text(line(State="REQUEUED", JobName="old"), line(day=2, JobName="new")))

    assert (job.job_id, job.elapsed_s, job.name) == ("7", 7200.0, "new")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_of_other_alphabets(end: str) -> None:
    (job,) = parse_accounting(text(line(JobName="one\u2028two\x85three\x0bfour"), end=end))

    assert job.name == "one\u2028two\x85three\x0bfour" and job.comment == ""


@pytest.mark.parametrize("elapsed", ["nan", "inf", "1_0", "1e3", "\u0661\u0662"])
def test_what_is_no_number(elapsed: str) -> None:
    with pytest.raises(SlurmParseError, match=r"sacct:2: ElapsedRaw must be a number"):
        parse_accounting(text(line(elapsed=elapsed)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": {"current": []}}, "IndexError"),
        ({"time": {"submission": float("nan"), "elapsed": 1}}, "nan is no number"),
        ({"time": {"submission": 1, "elapsed": {"set": True, "number": float("inf")}}}, "inf is no number"),
        ({"time": {"submission": 1, "elapsed": 10**400}}, "OverflowError"),
    ],
)
def test_what_is_no_number_nor_state_in_json(change: dict[str, Any], why: str) -> None:
    """Python's reader takes them; they would end in a traceback, or in figures that are none."""
    job = {
        "job_id": 1,
        "time": {"submission": 1, "elapsed": 1},
        "state": {"current": "COMPLETED"},
        "tres": {"allocated": []},
    }

    assert parse_accounting(json.dumps({"jobs": [job]}))
    with pytest.raises(SlurmParseError, match=rf"sacct: job number 1 is not understood: .*{why}"):
        parse_accounting(json.dumps({"jobs": [job | change]}))


ODD = st.text(st.sampled_from("a|<\n\r>7 hadar"), max_size=12).filter(lambda t: t == t.strip("\r\n"))


@given(names=st.lists(st.tuples(ODD, ODD), max_size=4))
def test_whatever_users_call_their_jobs(names: list[tuple[str, str]]) -> None:
    """As we ask, each is one job, with the name and comment that it has."""
    (option,) = (word for word in command("--allusers") if word.startswith("--delimiter="))
    delimiter = option.removeprefix("--delimiter=")
    rows = []
    for number, (name, comment) in enumerate(names):
        known = dict(zip(FIELDS, line(str(number)).split("|"), strict=True)) | {"JobName": name, "Comment": comment}
        rows.append(delimiter.join(known[field] for field in FIELDS))

    found = parse_accounting("\n".join([delimiter.join(FIELDS), *rows, ""]))

    assert [(j.job_id, j.name, j.comment) for j in found] == [(str(n), *words) for n, words in enumerate(names)]


def test_a_line_end_in_a_name_of_an_export() -> None:
    """Its row goes on in the next line; the jobs after it are read as ever."""
    found = parse_accounting(text(line("7", JobName="new\nline"), line("8", JobName="a|b"), line("9")))

    assert [(j.job_id, j.name) for j in found] == [("7", "new\nline"), ("8", "a|b"), ("9", "")]


@pytest.mark.parametrize(
    ("forms", "moment"),
    [
        (("2026-11-01T11:00:00", "2026-11-01T11:00:00-05:00", "1793548800"), 1793548800.0),
        (("2026-07-01T12:00:00", "2026-07-01T12:00:00-04:00", "1782921600"), 1782921600.0),
    ],
)
def test_times_are_epoch_seconds_however_they_are_written(
    monkeypatch: pytest.MonkeyPatch, forms: tuple[str, ...], moment: float
) -> None:
    """As sacct writes them by itself, local time, in winter and in summer; with an offset; as the controller asks for
    them."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        found = parse_accounting(text(*(line(str(n), Submit=form) for n, form in enumerate(forms, 1))))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [job.submit for job in found] == [moment] * 3


def test_times_that_no_calendar_has_are_named() -> None:
    for when in ("0001-01-01T00:00:00", "10000-01-01T00:00:00"):
        with pytest.raises(SlurmParseError, match="Submit must be a time such as"):
            parse_accounting(text(line(Submit=when)))
