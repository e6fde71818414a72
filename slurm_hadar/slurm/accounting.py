"""What ``sacct`` tells of jobs that are over: its text (``sacct -P`` with a header) or its JSON."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.slurm.node_lists import expand

__all__ = ["FIELDS", "AccountedJob", "command", "looks_like", "parse_accounting"]

#: What to ask for: ``sacct -P -X -D -o`` with these; :func:`command` does.
FIELDS = ("JobID", "User", "Account", "Partition", "State", "Submit", "Start", "End", "ElapsedRaw", "AllocTRES",
          "NodeList", "TimelimitRaw", "ReqTRES", "JobName", "Comment")  # fmt: skip
_NEEDED = ("JobID", "State", "Submit", "AllocTRES")
_FREE = ("JobName", "Comment", "SubmitLine", "WorkDir")
_UNKNOWN = frozenset(("", "Unknown", "None", "N/A", "NONE"))
_ELAPSED = re.compile(r"(?:(?P<d>\d+)-)?(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)(?:\.\d+)?")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_GPU = re.compile(r"gres/gpu(?::(?P<type>[^=,]+))?=(?P<count>\d+)")
_NODES = re.compile(r"\bnode=(\d+)")
_GOES_ON = frozenset(("RUNNING", "PENDING", "SUSPENDED", "COMPLETING"))
_ENDS = "\r\n"
_STATE = re.compile(r"[A-Z_]+(?: by \d+)?\+?")


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """One job, all its runs together. Times are epoch seconds; what is written without an offset counts as local time
    of this host. ``gpus`` maps types to counts; the type is "" where only a number was recorded. What was asked for: on
    how many nodes (``asked_nodes``) and GPUs of which type (``asked_type``; "" = any), for how long at most
    (``limit_s``, infinite = without a limit); None where nothing was recorded. ``several``: its runs in order, where
    there were several; GPUs and nodes of the job are those of the last."""

    job_id: str
    submit: float
    elapsed_s: float
    state: str
    gpus: Mapping[str, int]
    start: float | None = None
    end: float | None = None
    user: str = ""
    account: str = ""
    partition: str = ""
    name: str = ""
    comment: str = ""
    nodes: str = ""
    limit_s: float | None = None
    asked_nodes: int | None = None
    asked_type: str | None = None
    several: tuple[AccountedJob, ...] = ()

    @property
    def runs(self) -> tuple[AccountedJob, ...]:
        """Each with its own time, GPUs and nodes, in order."""
        return self.several or (self,)

    @property
    def unusable(self) -> str:
        """Why it tells nothing about how long such jobs are, to go on after "it" or "they"; empty if it does."""
        if not self.gpus:
            return "had no GPU"
        if self.end is None or self.state in _GOES_ON:
            return "had not ended"
        return "" if self.elapsed_s > 0 else "never ran"

    def gpu_type(self, types_of: Mapping[str, str]) -> str:
        """The type of most of its GPUs, as recorded, else that of its first node in ``types_of``; "" = not known."""
        typed = {t: n for t, n in self.gpus.items() if t}
        if typed:
            return max(sorted(typed), key=lambda t: typed[t])
        return next((types_of[n] for n in expand(self.nodes) if n in types_of), "") if types_of else ""


def looks_like(line: str) -> bool:
    """Whether the first line of a text is one of ``sacct``."""
    return line.lstrip().startswith("{") or {"JobID", "Submit"} <= set(line.strip().split("|"))


def command(*options: str) -> list[str]:
    """To ask sacct for the jobs that ``options`` choose. Users name their jobs, with line ends and whatever may stand
    between two fields: nobody can guess what does."""
    asked = ("--allocations", "--duplicates", "--parsable2", f"--delimiter=<{secrets.token_hex(4)}>")
    return ["sacct", *options, *asked, f"--format={','.join(FIELDS)}"]


def parse_accounting(text: str, name: str = "sacct") -> list[AccountedJob]:
    """Jobs in order of submission; steps and duplicates are folded in. Slurm counts jobs anew where it has lost its
    state: of several jobs with one number the last has it, and those before are ``17#1``, ``17#2``. Raises
    SlurmParseError naming line and field."""
    runs: dict[str, list[AccountedJob]] = {}
    for run in _from_json(text, name) if text.lstrip().startswith("{") else _from_text(text, name):
        known = runs.setdefault(run.job_id, [])
        if run not in known:  # else exports that overlap
            known.append(run)
    return sorted((job for known in runs.values() for job in _jobs(known)), key=lambda j: (j.submit, j.job_id))


def _jobs(runs: Sequence[AccountedJob]) -> list[AccountedJob]:
    """The jobs that had one number, one after the other."""
    apart: list[list[AccountedJob]] = []
    for run in sorted(runs, key=lambda run: run.submit):
        before = apart[-1][-1] if apart else None
        if before is None or run.user != before.user or (run.name != before.name and before.state != "REQUEUED"):
            apart.append([])
        apart[-1].append(run)
    *earlier, last = map(_together, apart)
    return [*(replace(job, job_id=f"{job.job_id}#{n}") for n, job in enumerate(earlier, 1)), last]


def _together(runs: Sequence[AccountedJob]) -> AccountedJob:
    """Runs of one job: the last tells the state, the first the submission."""
    if len(runs) == 1:
        return runs[0]
    several = tuple(sorted(runs, key=lambda run: run.submit))
    back = several[::-1]
    return replace(
        back[0],
        submit=several[0].submit,
        start=next((run.start for run in several if run.start is not None), None),
        elapsed_s=sum(run.elapsed_s for run in several),
        gpus=next((run.gpus for run in back if run.gpus), {}),
        nodes=next((run.nodes for run in back if run.nodes), ""),
        comment=next((run.comment for run in back if run.comment), ""),
        several=several,
    )


def _from_text(text: str, name: str) -> Iterable[AccountedJob]:
    # line ends of other alphabets may stand in a job's name
    lines = [(i, line.rstrip("\r")) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise SlurmParseError(f"{name}: is empty; it must be the output of sacct -P with its header")
    first, title = lines[0][0], lines[0][1].strip()
    delimiter = _delimiter(title)
    header = title.split(delimiter)
    missing = [f for f in _NEEDED if f not in header]
    if missing:
        raise SlurmParseError(f"{name}:{first}: field {missing[0]} is missing; ask sacct for {','.join(FIELDS)}")
    if delimiter == "|":
        rows = _lines_joined(lines[1:], len(header), lines[0][1])
    else:
        rows = _cut(text[text.index(title) + len(title) :], delimiter, len(header), first + 1)
    for number, values in rows:
        row = _row(header, values, f"{name}:{number}")
        if "." not in row["JobID"]:
            yield _text_job(row, f"{name}:{number}")


def _delimiter(title: str) -> str:
    """What stands between the fields: ``|``, or what :func:`command` has asked for."""
    return "|" if "|" in title else title.removeprefix(FIELDS[0]).partition(FIELDS[1])[0] or "|"


def _lines_joined(lines: Sequence[tuple[int, str]], count: int, title: str) -> Iterable[tuple[int, list[str]]]:
    """Rows by their first lines. A line end in a job's name or comment cuts a row in two, of which the first is too
    short: it goes on in the lines after it."""
    row, number = "", 0
    for at, line in lines:
        if line == title and not row:  # of another export behind this one
            continue
        row, number = (f"{row}\n{line}", number) if row else (line, at)
        if row.count("|") >= count - 1:
            yield number, row.split("|")
            row = ""
    if row:
        yield number, row.split("|")


def _cut(text: str, delimiter: str, count: int, number: int) -> Iterable[tuple[int, list[str]]]:
    """Rows of ``count`` fields, by a delimiter that nobody could have put into one of them: only between two rows does
    a line end stand in its place, the last one before a job's id."""
    row: list[str] = []
    for piece in f"{text.strip(_ENDS)}\n".split(delimiter):
        value, _, following = piece.rpartition("\n") if len(row) == count - 1 else (piece, "", "")
        row.append(value)
        if len(row) == count:
            yield number, row
            number += sum(field.count("\n") for field in row) + 1
            row = [following]
    if any(field.strip() for field in row):
        yield number, row


def _row(header: Sequence[str], values: Sequence[str], where: str) -> Mapping[str, str]:
    """Fields by name. A ``|`` in a job's name or comment makes too many: they go where the rest then reads well."""
    surplus = len(values) - len(header)
    if surplus == 0:
        return dict(zip(header, values, strict=True))
    if surplus > 0:
        for free in (f for f in _FREE if f in header):
            at = header.index(free)
            joined = [*values[:at], "|".join(values[at : at + surplus + 1]), *values[at + surplus + 1 :]]
            row = dict(zip(header, joined, strict=True))
            if _STATE.fullmatch(row["State"]) and _is_time(row["Submit"]):
                return row
    raise SlurmParseError(
        f"{where}: {len(values)} fields where the header has {len(header)}; ask sacct for {','.join(FIELDS)} only"
    )


def _is_time(text: str) -> bool:
    try:
        return _time(text, "", "") is not None
    except SlurmParseError:
        return False


def _text_job(row: Mapping[str, str], where: str) -> AccountedJob:
    submit, start, end = (_time(row.get(f, ""), where, f) for f in ("Submit", "Start", "End"))
    if submit is None:
        raise SlurmParseError(f"{where}: Submit must be a time, not {row['Submit']!r}")
    if row.get("ElapsedRaw"):
        elapsed_s = _number(row["ElapsedRaw"], where, "ElapsedRaw")
    elif row.get("Elapsed"):
        elapsed_s = _elapsed(row["Elapsed"], where)
    elif "Start" in row and "End" in row:
        elapsed_s = end - start if start is not None and end is not None else 0.0
    else:
        raise SlurmParseError(f"{where}: none of ElapsedRaw, Elapsed, or Start and End is there")
    return AccountedJob(
        row["JobID"],
        submit,
        max(0.0, elapsed_s),
        row["State"].split(" ")[0].rstrip("+"),
        _gpus(row["AllocTRES"]),
        start,
        end,
        row.get("User", ""),
        row.get("Account", ""),
        row.get("Partition", ""),
        row.get("JobName", ""),
        row.get("Comment", ""),
        "" if row.get("NodeList") in (None, "None assigned") else row["NodeList"],
        _limit_s(row.get("TimelimitRaw", ""), where),
        *_asked(row.get("ReqTRES", "")),
    )


def _limit_s(minutes: str, where: str) -> float | None:
    if minutes in _UNKNOWN or minutes == "Partition_Limit":
        return None
    return math.inf if minutes == "UNLIMITED" else 60.0 * _number(minutes, where, "TimelimitRaw")


def _asked(tres: str) -> tuple[int | None, str | None]:
    """Nodes, and the type of GPU, out of ReqTRES."""
    gpus, nodes = _gpus(tres), _NODES.search(tres)
    return int(nodes[1]) if nodes else None, "+".join(sorted(gpus)) if gpus else None


def _gpus(text: str) -> dict[str, int]:
    found = [(m["type"] or "", int(m["count"])) for m in _GPU.finditer(text)]
    typed = {t: n for t, n in found if t and n > 0}
    return typed or {t: n for t, n in found if n > 0}


def _time(text: str, where: str, field: str) -> float | None:
    if text in _UNKNOWN:
        return None
    if text.isdecimal():
        return float(text)
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise SlurmParseError(f"{where}: {field} must be a time such as 2026-11-20T18:00:00, not {text!r}") from None


def _number(text: str, where: str, field: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise SlurmParseError(f"{where}: {field} must be a number, not {text!r}")
    return float(text)


def _elapsed(text: str, where: str) -> float:
    match = _ELAPSED.fullmatch(text)
    if not match:
        raise SlurmParseError(f"{where}: Elapsed must read [D-[HH:]]MM:SS, not {text!r}")
    days, hours, minutes, seconds = (float(match[k] or 0) for k in "dhms")
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _from_json(text: str, name: str) -> Iterable[AccountedJob]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise SlurmParseError(f"{name}:{error.lineno}: is not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, or thousands of brackets
        raise SlurmParseError(f"{name}: is not valid JSON: {error}") from None
    jobs = content.get("jobs") if isinstance(content, Mapping) else None
    if not isinstance(jobs, list):
        raise SlurmParseError(f"{name}: has no list of jobs; it must be the output of sacct --json")
    for position, job in enumerate(jobs):
        try:
            yield _json_job(job)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SlurmParseError(f"{name}: job number {position + 1} is not understood: {error!r}") from None


def _json_job(job: Mapping[str, Any]) -> AccountedJob:
    times = job["time"]
    task = _plain((job.get("array") or {}).get("task_id"))
    job_id = str(job["job_id"]) if task is None else f"{job['array']['job_id']}_{task:.0f}"
    current = job["state"]["current"]
    submit = _plain(times["submission"])
    if submit is None:
        raise ValueError("no time of submission")
    return AccountedJob(
        job_id,
        submit,
        _plain(times["elapsed"]) or 0.0,
        current if isinstance(current, str) else current[0],
        _gpus(_tres(job["tres"]["allocated"])),
        _plain(times.get("start")) or None,
        _plain(times.get("end")) or None,
        job.get("user") or "",
        job.get("account") or "",
        job.get("partition") or "",
        job.get("name") or "",
        (job.get("comment") or {}).get("job") or "",
        job.get("nodes") or "",
        _json_limit_s(times.get("limit")),
        *_asked(_tres(job["tres"].get("requested") or ())),
    )


def _tres(entries: Iterable[Mapping[str, Any]]) -> str:
    """As the text of sacct has it."""
    return ",".join(
        f"{t['type']}{'/' if t.get('name') else ''}{t.get('name') or ''}={_plain(t['count']) or 0:.0f}" for t in entries
    )


def _json_limit_s(limit: Any) -> float | None:
    if isinstance(limit, Mapping) and limit.get("infinite"):
        return math.inf
    minutes = _plain(limit)
    return None if minutes is None else 60.0 * minutes


def _plain(value: Any) -> float | None:
    """A number, which newer versions wrap into ``{"set": true, "number": 5}``."""
    if isinstance(value, Mapping):
        value = value["number"] if value.get("set") else None
    number = None if value is None else float(value)
    if number is not None and not math.isfinite(number):  # Python reads NaN and 1e999, which are no JSON numbers
        raise ValueError(f"{number} is no number")
    return number
