"""What sacct tells, as sites export it."""

from __future__ import annotations

import pytest

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.simulator.traces.accounting import read
from slurm_hadar.slurm.accounting import FIELDS, parse_accounting
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


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_of_other_alphabets(end: str) -> None:
    (job,) = parse_accounting(text(line(JobName="one\u2028two\x85three\x0bfour"), end=end))

    assert job.name == "one\u2028two\x85three\x0bfour" and job.comment == ""


@pytest.mark.parametrize("elapsed", ["nan", "inf", "1_0", "1e3", "\u0661\u0662"])
def test_what_is_no_number(elapsed: str) -> None:
    with pytest.raises(SlurmParseError, match=r"sacct:2: ElapsedRaw must be a number"):
        parse_accounting(text(line(elapsed=elapsed)))
