"""``hadar explain``: why a job waits, at what price it would run, and where it would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from slurm_hadar.cli.common import as_in_the_queue, config_options, json_option, known_jobs, open_journal, print_json
from slurm_hadar.cli.jobs.expectation import as_dict, in_words
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.expectation import Answer, answer
from slurm_hadar.controller.answers.lines import size_source
from slurm_hadar.controller.answers.peek import peek
from slurm_hadar.controller.answers.status import first_task
from slurm_hadar.controller.answers.told import as_given
from slurm_hadar.controller.answers.view import TIERS, silence
from slurm_hadar.controller.journal import JobRecord, Reader, Stage
from slurm_hadar.controller.prediction.forecasts import Forecast
from slurm_hadar.controller.words import clock, place, plain, sharing
from slurm_hadar.errors import HadarError
from slurm_hadar.model import Placement, outruns
from slurm_hadar.slurm.backend.select import choose
from slurm_hadar.units import between, counted, span

__all__ = ["explain"]


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=known_jobs)
@json_option
@config_options
def explain(config: Config, job_id: str, as_json: bool) -> None:
    """Why JOB waits, at what price it would run, who is before it, when it should start, and what if it took other
    GPUs.

    Of a job array that is its first task which is not over.
    """
    with open_journal(config) as journal:
        job_id = _meant(journal, config, job_id)
        record, wait = journal.job(job_id), journal.wait(job_id)
        last = next((e for e in reversed(journal.history(job_id)) if "kind" in e), None)
        fork = _fork(journal, job_id)
        silent = silence(journal, config, time.time())
    if silent and (record is None or record.stage is not Stage.OVER):
        click.echo(f"note: {silent}", err=True)
    if fork is not None and job_id == fork["job_id"]:
        print_json(fork) if as_json else click.echo("\n".join(plain(line) for line in _forked(fork)))
        return
    expected, slurm = _ask_slurm(config, job_id) if record is None or record.stage is not Stage.OVER else (None, {})
    if record is None and wait is None and expected is None and "state" not in slurm:
        raise HadarError(f"job {job_id} is not known to the controller; is the id right (array tasks: 123_4)?")
    if as_json:
        print_json(
            {
                "job_id": job_id,
                "wait": wait,
                "last_decision": last,
                "record": None if record is None else record.as_dict(),
                "fork": fork,
                "size": size_source(record),
                "slurm": slurm,
                "expected": None if expected is None else as_dict(expected),
                "shares": _shares(record),
            }
        )
        return
    for line in _explanation(job_id, record, wait, last, expected, slurm):
        click.echo(plain(line))
    if fork is not None:
        click.echo(f"  copy         of {_progress(fork)}")


def _meant(journal: Reader, config: Config, job_id: str) -> str:
    """Of a job array its first task which is not over; what the journal does not know as the queue calls it."""
    if not _is_known(journal, job_id):
        job_id = first_task(journal, job_id)
    return job_id if _is_known(journal, job_id) else as_in_the_queue(config, job_id)


def _is_known(journal: Reader, job_id: str) -> bool:
    return journal.job(job_id) is not None or journal.forks().get(job_id) is not None


def _ask_slurm(config: Config, job_id: str) -> tuple[Answer | None, dict[str, Any]]:
    """What is expected of the job as the cluster is now, and what Slurm itself says of it; a Slurm that is away is no
    reason to keep back what the journal knows."""
    config = as_given(config)
    try:
        backend = choose("cli", config.slurm.timeout_s, config.slurm.retries)
        now = peek(backend, config)
        expected = answer(now, job_id, config)
    except HadarError as error:
        return None, {"away": str(error)}
    job = now.snapshot.job.get(job_id)
    if job is None:
        return None, {}
    stays = job.unmovable if job.running and not job.pinned else None
    keeps = dict(job.ruled_out) if job.running and job.steerable and job.movable else {}
    return expected, {
        "state": str(job.state), "reason": job.reason, "pinned": job.pinned, "stays": stays, "keeps_type": keeps,
    }  # fmt: skip


def _fork(journal: Reader, job_id: str) -> dict[str, Any] | None:
    """What is known of the forked job that ``job_id`` is, or is a copy of; None if it is neither."""
    parent = job_id.partition("_")[0]
    known = journal.forks().get(parent)
    if known is None:
        return None
    number, steps, total, closer = known
    waits = journal.waits()
    copies = {
        record.job_id: {
            "runs": record.stage is Stage.RUNNING,
            "steps_per_s": record.steps_per_s,
            "why": waits.get(record.job_id, {}).get("why", ""),
        }
        for record in journal.load_jobs().values()
        if record.job_id.startswith(f"{parent}_")
    }
    return {"job_id": parent, "consolidation": number, "steps": steps, "total_steps": total, "closer": closer,
            "copies": copies}  # fmt: skip


def _progress(fork: dict[str, Any]) -> str:
    total = "?" if fork["total_steps"] is None else f"{fork['total_steps']:.0f}"
    if fork["consolidation"] < 0:
        return f"job {fork['job_id']}, which has not consolidated yet"
    return f"job {fork['job_id']}: {fork['steps']} of {total} steps are in consolidation {fork['consolidation']}"


def _forked(fork: dict[str, Any]) -> list[str]:
    running = sum(1 for copy in fork["copies"].values() if copy["runs"])
    lines = [f"{_progress(fork)}; {running} of {len(fork['copies'])} copies at work."]
    for job_id, copy in sorted(fork["copies"].items(), key=lambda item: int(item[0].rpartition("_")[2])):
        speed = "" if copy["steps_per_s"] is None else f" at {copy['steps_per_s']:.3g} steps/s"
        state = f"runs{speed}" if copy["runs"] else f"waits: {copy['why'] or 'for a round'}"
        lines.append(f"  {job_id:<12} {state}")
    if fork["closer"] is not None:
        lines.append(f"  all steps are done; copy {fork['closer']} ends the script")
    return lines


def _explanation(
    job_id: str,
    record: JobRecord | None,
    wait: dict[str, Any] | None,
    last: dict[str, Any] | None,
    expected: Answer | None,
    slurm: dict[str, Any],
) -> list[str]:
    lines = _state(job_id, record, wait, last, slurm)
    if slurm.get("pinned") and slurm.get("state") == "pending":
        lines.append(f"  Slurm says   {slurm['reason'] or 'nothing'}; squeue --start -j {job_id} has its own estimate")
    if slurm.get("stays"):
        lines.append(f"  stays put    {slurm['stays']}")
    lines += _kept_type(slurm.get("keeps_type", {}))
    if "away" in slurm:
        lines.append(f"  expected     nothing can be said now: {slurm['away']}")
    if expected is not None:
        lines += in_words(expected, time.time())
    if record is not None:
        lines += _remembered(record, None if expected is None else expected.outrun_steps)
    if last is not None:
        what = f"{last['kind']} {last['why']}".rstrip()
        lines.append(f"  last decision in round {last['round']} at {clock(last['time'])}: {what}")
    return lines


def _kept_type(ruled_out: dict[str, str]) -> Iterator[str]:
    """Why a running job that may be moved is not moved to GPU types."""
    for why in dict.fromkeys(ruled_out.values()):
        types = sorted(gpu_type for gpu_type, its in ruled_out.items() if its == why)
        yield f"  keeps type   not moved to {' or '.join(types)}: {why}"


def _state(
    job_id: str,
    record: JobRecord | None,
    wait: dict[str, Any] | None,
    last: dict[str, Any] | None,
    slurm: dict[str, Any],
) -> list[str]:
    if record is not None and record.ended is not None:
        return [f"job {job_id} has ended ({clock(record.ended)})."]
    if wait is not None:
        return [f"job {job_id} {TIERS.get(wait['tier'], wait['tier'])}: {wait['why']}", *_would_take(wait)]
    if slurm.get("pinned"):
        return [f"job {job_id} {TIERS['pinned']}: {slurm['pinned']}"]
    if slurm.get("state") == "pending" or (record is None and "state" not in slurm):
        return [f"job {job_id} {_waits(record, last)}"]
    if record is not None and record.readied:
        return [f"job {job_id} has been given nodes, and starts when they are ready."]
    return [f"job {job_id} runs" + ("; no round has looked at it yet." if record is None else ".")]


def _would_take(wait: dict[str, Any]) -> Iterator[str]:
    """Where a waiting job would run, and at what price."""
    wanted = Placement.of(wait.get("wanted") or {})
    if wanted:
        yield f"  would take   {place(wanted)}"
    if wait.get("price") is not None and wait.get("payoff") is not None:
        utility = wait["price"] + wait["payoff"]
        yield f"  price {wait['price']:.4g} against utility {utility:.4g}: payoff {wait['payoff']:.4g}"


def _shares(record: JobRecord | None) -> dict[str, Any] | None:
    """With whom the job has a GPU, as the last round has seen it; None for one that runs on GPUs of its own."""
    if record is None or record.stage is not Stage.RUNNING or not record.company:
        return None
    return dict(record.company)


def _remembered(record: JobRecord, outrun_steps: float | None) -> Iterator[str]:
    total = "?" if record.total_steps is None else f"{record.total_steps:.0f}"
    yield f"  steps        {record.steps:.0f} of {total}, last checkpoint at {record.saved_step or 0:.0f}"
    yield from _size(record, outrun_steps)
    if shares := _shares(record):
        yield f"  shares       {sharing(shares)}"
    yield f"  moved        {counted(record.moves, 'time')}, {record.had_s / 3600:.2f} GPU-hours used so far"
    if record.retries:
        yield f"  retries      {record.retries} so far, after its command failed (hadar history has each)"
    if record.graph_fault:
        yield f"  graph        goes on without it: {record.graph_fault}"
    if record.size_kept:
        yield f"  keeps size   {record.size_kept}"
    if record.lowered:
        yield f"  weight       {record.lowered}"
    if record.serves:
        yield f"  serves       its server wants {counted(record.wanted, 'GPU')}; a larger size is worth no more to it"
    if record.forgotten:
        yield (
            f"  WARNING      a move sets {record.forgotten} of this training's parts back, which are in no "
            "checkpoint: its output names them; give them to slurm_hadar.train(..., also={...})"
        )
    yield from _costs(record)


def _costs(record: JobRecord) -> Iterator[str]:
    restart = "not measured yet" if record.start_s is None else span((record.save_s or 0) + record.start_s)
    yield f"  restart cost {restart}"
    if record.save_s is not None:
        stall = "" if record.stall_s is None else f", of which the training stood still for {record.stall_s:.2f} s"
        yield f"  last save    took {record.save_s:.2f} s{stall}"


def _waits(record: JobRecord | None, last: dict[str, Any] | None) -> str:
    """What is known of a waiting job that the last round gave no reason for."""
    if last is not None and last["kind"] in ("start", "move"):
        return f"was given its GPUs in round {last['round']}, and starts as soon as Slurm has them free."
    if record is None:
        return "waits for its first round."
    return "waits; the last round has decided nothing about it (hadar queue says whether it was one)."


_KNOWN_FROM = {"stated": "stated in its comment", "reported": "reported by its script"}


def _size(record: JobRecord, outrun_steps: float | None) -> list[str]:
    """Where it is known from how many steps the job makes, or how long it is expected to be and why."""
    found = Forecast.of(record)
    if record.disbelieved:
        taken = "" if outrun_steps is None else f", taken to be {outrun_steps:.0f} steps now"
        return [f"  size         not known: {record.disbelieved}{taken}"]
    if (where := _KNOWN_FROM.get(size_source(record))) is not None:
        return [f"  size         {where}{_outrun(record, outrun_steps)}"]
    if found is None:
        return ["  size         not known: its comment states no steps, its script reports none, nothing is predicted"]
    most = f", four in five such jobs {between(found.low_s, found.high_s)}"
    runs = "1 earlier run" if found.runs == 1 else f"{found.runs or 'no'} earlier runs"
    return [
        f"  size         predicted: {span(found.expected_s)} alone on the fastest GPUs"
        + (most if found.high_s > found.low_s else ""),
        f"               from {runs} of {record.user}/{record.name}, by {found.source} (version {found.version})",
    ]


def _outrun(record: JobRecord, taken_steps: float | None) -> str:
    """That what is stated is known to be too little, and what the job is taken to be instead."""
    if taken_steps is None or record.total_steps is None:
        return ""
    how = "" if outruns(record.steps, record.total_steps) else ", by its time and speed"
    return f", which it has outrun{how}: taken to be {taken_steps:.0f} steps now"
