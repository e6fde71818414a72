"""What is in the journal in words, for the terminal and for pages: times, placements, and what became of a job."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_hadar.config import Mode
from slurm_hadar.controller.journal import JobRecord, WriteOutcome
from slurm_hadar.model import Placement
from slurm_hadar.units import counted, span

__all__ = [
    "about",
    "being_readied",
    "clock",
    "done",
    "gpus",
    "in_words",
    "outrun",
    "place",
    "plain",
    "sharing",
    "sharing_in_short",
    "summary",
]

_DECIDED = {"start": "starts", "move": "moves", "preempt": "is stopped", "wait": "waits", "stay": "stays",
            "end": "has ended"}  # fmt: skip
# what a policy would do, where nobody lets it
_WOULD = {"start": "would start", "move": "would move", "preempt": "would be stopped", "wait": "would wait",
          "stay": "would stay"}  # fmt: skip
_HAPPENED = {"restart": "is put back", "anew": "begins anew", "forecast": "is expected to take",
             "graph": "goes on without its graph", "weight": "counts for less", "barred": "is kept off a node",
             "slurm": "is started by Slurm", "retry": "is run again", "asked": "has changed",
             "size": "keeps its size", "raised": "states ever more steps",
             "wanted": "asks for its size"}  # fmt: skip
_OUTCOMES = {
    WriteOutcome.OK: "Slurm was told",
    WriteOutcome.REFUSED: "Slurm refused",
    WriteOutcome.INEFFECTIVE: "without effect",
    WriteOutcome.UNDONE: "undone",
    WriteOutcome.SLOW: "Slurm takes time",
    WriteOutcome.OVERTAKEN: "came too late",
    WriteOutcome.SENT: "sent, no answer known",
}


def plain(text: str, kept: str = "") -> str:
    """``text`` with ``?`` for what is not printable, but for ``kept``: names and comments are other users', a terminal
    obeys, and what turns the direction of writing forges the words behind it."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in kept else "?" for c in text)


def being_readied(record: JobRecord) -> str:
    """Why a job that Slurm has given nodes does not run yet."""
    since = min(record.readied.values(), default=None)
    return "its nodes are being made ready for it" + ("" if since is None else f" since {clock(since)}")


def clock(moment: float) -> str:
    """Local wall-clock time, with the date where it is not today's."""
    when = dt.datetime.fromtimestamp(moment).astimezone()
    today = when.date() == dt.datetime.fromtimestamp(time.time()).astimezone().date()
    return when.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def about(between: Sequence[float]) -> str:
    """An approximate interval of time, to the minute: ``14:05 to 16:30``, with the date where it is not today's."""
    return " to ".join(clock(moment)[:-3] for moment in between)


def place(placement: Placement) -> str:
    """A placement for people: ``v100-1 2xv100, p100-2 2xp100``."""
    if not placement:
        return "-"
    return ", ".join(f"{node} {'+'.join(f'{n}x{t}' for t, n in counts)}" for node, counts in placement.shares)


def sharing(shares: Mapping[str, Any] | None) -> str:
    """With whom a job has its GPU, of what the ``shares`` of a queue's line say: ``GPU 0 with 22, keeps 50 % (turns)``;
    "" for one that shares none."""
    if not shares or (shares["gpu"] is None and not shares["with"]):
        return ""
    gpu = _gpu(shares)
    beside = f" with {', '.join(shares['with'])}" if shares["with"] else " alone"
    if shares["keeps"] is None:
        return gpu + beside
    turns = shares.get("turns", 0.5)
    share = "" if turns == 0.5 else f"has {100 * turns:.0f} % of the turns, " if turns else "gives it all turns, "
    return f"{gpu}{beside}, {share}keeps {100 * shares['keeps']:.0f} % of its speed ({shares['known_by']})"


def sharing_in_short(shares: Mapping[str, Any] | None) -> str:
    """The same in few words: ``GPU 0 with 6 others, 14 %``; "" for one that has its GPU for itself."""
    if not shares or not shares["with"]:
        return ""
    others = shares["with"]
    beside = f"{_gpu(shares)} with {others[0] if len(others) == 1 else f'{len(others)} others'}"
    return beside if shares["keeps"] is None else f"{beside}, {100 * shares['keeps']:.0f} %"


def _gpu(shares: Mapping[str, Any]) -> str:
    return "a GPU" if shares["gpu"] is None else f"GPU {shares['gpu']}"


def gpus(count: float) -> str:
    """A number of GPUs, of which somebody may have parts: ``12``, ``2.3``, ``0.14``."""
    return f"{count:.2g}" if count < 1 else f"{round(count, 1):.12g}"


def outrun(share: float | None, size: str) -> bool:
    """Whether a job has made more steps than were stated, by the ``done_share`` and ``size`` of a queue's line."""
    return share is None and size in ("stated", "reported")


def done(share: float | None, size: str) -> str:
    """How far a job is, of the ``done_share`` and ``size`` of a queue's line: ``40 %``; ``>100 %`` of one that has
    outrun what was stated; ``-`` of one whose length nobody states."""
    if share is None:
        return ">100 %" if outrun(share, size) else "-"
    return f"{100 * share:.0f} %"


def summary(record: JobRecord) -> str:
    """The job in one line: whose it is, since when, and how often it was moved and begun again."""
    parts = [f"job {record.job_id} of {record.user or 'unknown'} ({record.name or 'no name'})",
             f"submitted {clock(record.arrival)}", counted(record.moves, "move"), counted(record.restarts, "restart"),
             f"{span(record.had_s)} of GPU time"]  # fmt: skip
    if record.lost_steps:
        parts.append(f"{record.lost_steps:.0f} steps done twice")
    if record.ended is not None:
        parts.append(f"ended {clock(record.ended)} ({record.final.lower() or 'unknown'})")
    return ", ".join(parts)


def in_words(entry: dict[str, Any]) -> tuple[str, str]:
    """An entry of :meth:`Journal.history` for people: what, and the detail."""
    if "event" in entry:
        return _HAPPENED.get(entry["event"], entry["event"]), entry["why"]
    if "command" in entry:
        told = _told(entry["command"], entry["time"])
        return f"  {_OUTCOMES.get(entry['outcome'], entry['outcome'])}", told + (
            f" ({entry['detail']})" if entry["detail"] else ""
        )
    new, old = Placement.of(entry["new"]), Placement.of(entry["old"])
    where = f"from {place(old)} to {place(new)}" if old and new and old != new else place(new or old)
    what = _DECIDED if entry.get("mode") in (None, Mode.ACT) else _WOULD
    kind = entry["kind"]
    detail = "; ".join(part for part in (where if where != "-" else "", entry["why"]) if part)
    return what.get(kind, _DECIDED.get(kind, kind)), detail


_VERBS = {
    "requeue": "stop it and put it back into the queue",
    "restart": "put it back into the queue",
    "release": "release it",
}


def _told(command: str, moment: float) -> str:
    """A write to Slurm in words; word for word if it is none of those that the controller makes.

    ``moment`` is when it was written: its start times are relative to that.
    """
    verb, _, rest = command.partition(" ")
    if verb in _VERBS:
        return _VERBS[verb]
    fields = dict(re.findall(r"(\w+)=(\S*)", rest))
    start = re.fullmatch(r"now(?:\+(\d+))?", fields.get("StartTime", ""))
    if verb != "update" or (start is None and fields.get("NodeList") != ""):
        return command
    if start is None:
        return "give it back every node, in the shape it was submitted in"
    later = int(start[1] or 0)
    if fields.get("NodeList"):
        gpus = re.search(r"(gpu|shard):(\d+)", fields.get("TresPerNode", ""))
        each = ""
        if gpus:
            count = counted(int(gpus[2]), "GPU" if gpus[1] == "gpu" else "shard")
            each = f", {count} on each" if gpus[1] == "gpu" else f", with {count} of a GPU"
        return f"start it on {fields['NodeList']}{each}" + (f" in {later} s" if later else "")
    if later:
        return f"not to start it before {clock(moment + later)}, unless told otherwise (lease)"
    return "start it anywhere, as it was submitted" if "NodeList" in fields else "start it now"
