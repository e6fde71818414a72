"""How the journal grows: a long queue over a Slurm in memory, looked at round after round.

    python -m benchmarks.costs.journal [--jobs 1000] [--rounds 240]

16 GPUs, one job ends and one comes in every round, and all others wait and are put off anew. Prints the bytes of the
journal's pages in use after a tenth of the rounds and at the end, and what a round, and a job that came and went, adds.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from slurm_hadar.config import load
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.setup import steer
from slurm_hadar.model import JobState
from slurm_hadar.policies import registry
from slurm_hadar.testing.fake_slurm import FakeSlurm

_SETTINGS = ("controller.mode=act", "controller.round_s=2", "controller.foresee_s=0", "jobs.start_timeout_s=3")
_COMMENT = "hadar:model=resnet18,batch=64,steps=2000000,ckpt=yes"


def grow(folder: Path, jobs: int, rounds: int) -> dict[str, object]:
    """Bytes of a journal, with so many jobs waiting."""
    slurm = FakeSlurm({f"{t}-{n}": (t, 4) for t in ("v100", "k80") for n in (1, 2)})
    journal = Journal(folder / "journal.db")
    config = load(None, [*_SETTINGS, f"controller.state_dir={folder}"])
    controller = steer(registry.get("hadar"), config, Parts(slurm, journal, ReportBook(), None))
    for _ in range(jobs + 16):
        slurm.submit(1, _COMMENT)
    used = []
    for _ in range(rounds):
        controller.run_round()
        running = [job_id for job_id, job in slurm.jobs.items() if job.state is JobState.RUNNING]
        for job_id in running[:1]:
            slurm.end(job_id)
            slurm.submit(1, _COMMENT)
        for job_id, job in slurm.jobs.items():  # as if the lease were nearly over
            slurm.jobs[job_id] = replace(job, eligible=None) if job.state is JobState.PENDING else job
        used.append(_bytes(journal))
    early = rounds // 10
    return {
        "waiting": jobs, "rounds": rounds, f"bytes_after_{early}_rounds": used[early - 1], "bytes": used[-1],
        "bytes_a_round_with_one_job_ended": round((used[-1] - used[early - 1]) / (rounds - early)),
        "rows": {t: _count(journal, t) for t in ("jobs", "decisions", "writes", "events", "rounds", "price_history")},
    }  # fmt: skip


def _bytes(journal: Journal) -> int:
    pages, free, size = (
        journal.connection.execute(f"PRAGMA {what}").fetchone()[0]
        for what in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _count(journal: Journal, table: str) -> int:
    return int(journal.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@click.command()
@click.option("--jobs", default=1000, show_default=True, help="That wait.")
@click.option("--rounds", default=240, show_default=True, help="A day of them, at 360 s.")
def main(jobs: int, rounds: int) -> None:
    """Measure how the journal grows."""
    with tempfile.TemporaryDirectory(prefix="hadar-journal-") as folder:
        click.echo(json.dumps(grow(Path(folder), jobs, max(20, rounds)), indent=1))


if __name__ == "__main__":
    main()
