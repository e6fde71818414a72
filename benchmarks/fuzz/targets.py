"""The parsers, with samples to begin from. Samples in ``benchmarks/data/fuzz`` were captured from a private Slurm 22.05
and a training that ran on it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz import places
from slurm_hadar import comment, config
from slurm_hadar.cluster.spec import parse_nodes as parse_spec
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.agents.spools import SpoolReader
from slurm_hadar.controller.agents.user_files import UserFiles
from slurm_hadar.controller.journal import Journal
from slurm_hadar.errors import HadarError
from slurm_hadar.forks import PeriodPlan
from slurm_hadar.graphs.files import graph_of, parse_graph
from slurm_hadar.graphs.network import Network
from slurm_hadar.graphs.topology import parse_switches
from slurm_hadar.messages import ChannelInfo, decode_order, decode_report
from slurm_hadar.runtime.checkpoint.listing import Checkpoint
from slurm_hadar.runtime.checkpoint.store import Store
from slurm_hadar.runtime.forks.meeting import Commit, MeetingDirectory
from slurm_hadar.runtime.tasks import nodelist
from slurm_hadar.runtime.tasks.rankmap import read_allocation
from slurm_hadar.simulator.throughputs import load_table
from slurm_hadar.simulator.traces import read_text, read_trace
from slurm_hadar.simulator.virtual.faults import read_faults
from slurm_hadar.slurm import parsing, tres
from slurm_hadar.slurm.accounting import parse_accounting
from slurm_hadar.slurm.limits import parse_bounds
from slurm_hadar.slurm.node_lists import expand
from slurm_hadar.throughput.table import read_table, reference

__all__ = ["Target", "targets"]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "benchmarks" / "data" / "fuzz"
TRACES = ROOT / "tests" / "simulator" / "data"
_FILES = UserFiles()
MARK = "00112233445566ff"
COLUMNS = (
    ("jobs", "record"), ("rounds", "record"), ("waits", "record"), ("decisions", "old"), ("decisions", "new"),
    ("memory", "content"), ("usage", "gpu_s"), ("forks", "steps"),
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """``run`` parses one input, in a folder of its own that it may write to. ``allowed`` are the errors that a user
    would see as one line; anything else is a crash."""

    name: str
    samples: tuple[bytes, ...]
    run: Callable[[bytes, Path], object]
    allowed: tuple[type[Exception], ...] = (HadarError,)


def _text(data: bytes) -> str:
    """As the Slurm commands' output is decoded."""
    return data.decode("utf-8", "replace")


def _captured(*names: str) -> tuple[bytes, ...]:
    return tuple((DATA / name).read_bytes() for name in names)


def _file(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _comment(data: bytes, _folder: Path) -> None:
    text = _text(data)
    comment.read(text)
    comment.render(comment.parse(text))


def _journal_file(data: bytes, folder: Path) -> None:
    """A journal whose file is damaged: opened, read and written."""
    for old in folder.glob("journal.db*"):
        old.unlink()
    places.use(Journal(_file(data, folder, "journal.db")))


def _journal_rows(data: bytes, folder: Path) -> None:
    """A sound file whose rows hold anything."""
    path = folder / "rows.db"
    if not path.exists():
        path.write_bytes(places.journal_bytes(folder))
    value = data.decode("utf-8", "surrogateescape").encode("utf-8", "surrogateescape")
    with sqlite3.connect(path) as db:
        for table, column in COLUMNS:
            db.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (value,))
    db.close()
    places.use(Journal(path))


def _spool(data: bytes, folder: Path) -> None:
    book = ReportBook()
    _file(data, folder, ".hadar/9/spool.jsonl")
    SpoolReader(book, _FILES).read("9", str(folder), str(os.getuid()))
    book.expect({"9": None})


def _manifest(data: bytes, folder: Path) -> None:
    directory = folder / "gen-1-step-400"
    if not directory.exists():
        for name, entry in json.loads((DATA / "manifest.json").read_text())["files"].items():
            _file(bytes(entry["size"]), directory, name)
    _file(data, directory, "manifest.json")
    Store(folder, "10", 2).verify(Checkpoint(1, 400, directory), sums=False)


def _room(data: bytes, folder: Path) -> None:
    shutil.rmtree(folder / "room", ignore_errors=True)
    (folder / "room").mkdir()
    for name in ("commit-000040.json", "plan.json"):
        _file(data, folder / "room", name)
    room = MeetingDirectory(folder / "room", 0)
    newest = room.newest()
    if newest is not None:
        room.check(newest)
        room.offers(newest)
    room.plan()


def _offer(data: bytes, folder: Path) -> None:
    """The header of a copy's offer, which is the file's beginning."""
    shutil.rmtree(folder / "room", ignore_errors=True)
    room = MeetingDirectory(folder / "room", 0)
    commit = Commit.from_json((DATA / "commit.json").read_text())
    path = room.offer_path(commit.number, 0)
    header = json.dumps({"__metadata__": {"hadar": _text(data)}}).encode()
    _file(len(header).to_bytes(8, "little") + header, path.parent, path.name)
    room.offers(commit)


def _graph_of(data: bytes, folder: Path) -> None:
    text = comment.parse("hadar:graph=" + _text(data).replace(",", ";")).graph
    graph_of(text or "", 4, folder)


def _config_file(data: bytes, folder: Path) -> None:
    config.load(_file(data, folder, "hadar.toml"))


def _pai(data: bytes, folder: Path) -> None:
    tables = data.split(b"\n=====\n")
    for name, table in zip(places.PAI_FILES, tables, strict=False):
        _file(table, folder / "pai", name)
    read_trace(folder / "pai", reference())


def targets(scratch: Path) -> list[Target]:
    """All of them; ``scratch`` is a folder for samples that have to be made."""
    sacct = tuple((TRACES / name).read_bytes() for name in ("sacct.txt", "sacct.json"))
    gavel = b"".join((TRACES / "gavel" / "static_60_multi_seed0.trace").read_bytes().splitlines(True)[:8])
    csv_table = b"".join((ROOT / "slurm_hadar/throughput/reference.csv").read_bytes().splitlines(True)[:14])
    messages, orders, channel = places.MESSAGES, places.ORDERS, places.CHANNEL
    names = ["v100-1", "v100-2"]
    return [
        Target("comment", places.COMMENTS, _comment),
        Target("config file", (places.CONFIG,), _config_file),
        Target("config --set", places.OVERRIDES, lambda d, _f: config.load(None, [_text(d)])),
        Target("squeue", _captured("squeue.txt"), lambda d, _f: parsing.parse_jobs(_text(d), MARK)),
        Target("squeue details", _captured("squeue-details.txt"), lambda d, _f: parsing.parse_details(_text(d), MARK)),
        Target("limits", _captured("scontrol-limits.txt"), lambda d, _f: parse_bounds(_text(d))),
        Target("sinfo", _captured("sinfo.txt"), lambda d, _f: parsing.parse_nodes(_text(d), MARK)),
        Target("gres", places.GRES, lambda d, _f: tres.parse_gres(_text(d))),
        Target("gres request", places.REQUESTS, lambda d, _f: tres.parse_request(_text(d))),
        Target("time limit", places.TIMES, lambda d, _f: parsing.parse_time_limit(_text(d))),
        Target("scontrol show config", _captured("scontrol-config.txt"), places.look_over),
        Target("scontrol show job", _captured("scontrol-job.txt"), lambda d, _f: read_allocation(_text(d))),
        Target("scontrol show topology", places.SWITCHES, lambda d, _f: parse_switches(_text(d))),
        Target("node list", places.NODE_LISTS, lambda d, _f: expand(_text(d))),
        Target("node list, on a node", places.NODE_LISTS, lambda d, _f: nodelist.expand(_text(d)), (ValueError,)),
        Target("cluster of --nodes", (b"v100:2x4,p100:2x4,v100+k80:1x2",), lambda d, _f: parse_spec(_text(d))),
        Target("sacct", sacct, lambda d, _f: parse_accounting(_text(d))),
        Target("report", messages, lambda d, _f: decode_report(d)),
        Target("order", orders, lambda d, _f: decode_order(d)),
        Target("channel file", (channel,), lambda d, _f: ChannelInfo.from_json(d)),
        Target("network file", (Network().to_json().encode(),), lambda d, _f: Network.from_json(_text(d))),
        Target("spool file", _captured("spool.jsonl"), _spool),
        Target("plan of periods", _captured("plan.json"), lambda d, _f: PeriodPlan.from_json(d)),
        Target("fork directory", _captured("commit.json", "plan.json"), _room),
        Target("offer of a copy", (places.OFFER,), _offer),
        Target("checkpoint manifest", _captured("manifest.json"), _manifest),
        Target("trace, CSV", (places.TRACE_CSV,), lambda d, _f: read_text(_text(d), "t", reference(), "csv")),
        Target("trace, Gavel", (gavel,), lambda d, _f: read_text(_text(d), "t", reference(), "gavel")),
        Target("trace, accounting", sacct, lambda d, _f: read_text(_text(d), "t", reference(), "sacct")),
        Target("trace, PAI", (places.PAI,), _pai),
        Target("trace, drawn", places.DRAWN, places.draw),
        Target("throughputs, CSV", (csv_table,), lambda d, _f: read_table(_text(d).splitlines())),
        Target("throughputs, JSON", (places.GAVEL_JSON,), lambda d, f: load_table(_file(d, f, "g.json"))),
        Target("faults file", (places.FAULTS,), lambda d, f: read_faults(_file(d, f, "f.csv"), names)),
        Target("graph file", (places.GRAPH,), lambda d, _f: parse_graph(_text(d))),
        Target("graph of a comment", places.GRAPHS, _graph_of),
        Target("journal file", (places.journal_bytes(scratch),), _journal_file),
        Target("journal rows", places.job_rows(scratch), _journal_rows),
    ]
