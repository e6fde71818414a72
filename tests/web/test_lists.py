"""The pages of many: folded arrays, ended jobs, users, partitions, nodes, and the time that pages look back."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from slurm_hadar.controller.answers.lines import folded
from slurm_hadar.controller.answers.savings import gpu_time, headline
from slurm_hadar.controller.answers.view import recorded_lines
from slurm_hadar.controller.journal import DashboardChanges, Gain, JobRecord, Journal, ReadOnlyJournal, RoundRecord, Run
from slurm_hadar.controller.journal.gains import saved
from slurm_hadar.model import Placement
from slurm_hadar.pages.worth import worth_by_rounds

NOW = 1_772_463_600.0


def row(
    job_id: str, user: str = "ann", state: str = "pending", held: str = "{}", arrival: float = 0.0, **more: Any
) -> tuple[Any, ...]:
    """A row of the table ``queue``."""
    head, _, task = job_id.partition("_")
    found = {"partition": "gpu", "gpus": 1, "types": "k80", "size": "", **more}
    return (
        job_id, int(head) * 10_000_000 + int(task or 0), user, "train", found["partition"], state, found["gpus"],
        found["types"], held, "-", arrival, None, None, None, 0, 0, found["size"], None, "w", None,
    )  # fmt: skip


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """Tasks of five arrays in every state, with reasons of two kinds, among jobs of their own."""
    rng, journal, rows, waits = random.Random(3), Journal(tmp_path / "journal.db"), [], {}
    for number in range(1, 300):
        job_id = f"{rng.choice((20, 100, 300, 4000, 50000))}_{number}" if rng.random() < 0.8 else str(100_000 + number)
        state = rng.choice(("pending", "pending", "pending", "running"))
        rows.append(row(job_id, state=state, arrival=rng.uniform(0, 1e6), gpus=rng.choice((1, 2))))
        if state == "pending":
            waits[job_id] = {"tier": rng.choice(("waits-by-policy", "pinned")), "why": f"reason of {job_id}"}
    journal.update_dashboard(1.0, DashboardChanges(queue=rows))
    journal.replace_waits(1, waits)
    journal.close()
    return tmp_path / "journal.db"


def test_arrays_fold_as_on_the_command_line(browse: Callable[..., TestClient], arrays: Path) -> None:
    """The same lines that ``hadar queue`` has, each on exactly one page, in the natural order of ids; JSON has each."""
    with ReadOnlyJournal(arrays) as journal:
        lines = folded(recorded_lines(journal.queue_page(sort="job", limit=1000)[0]))
        found, total = journal.queue_folded({}, "job", False, 1000, 0)
        pages = [journal.queue_folded({}, "job", False, 10, 10 * n)[0] for n in range(-(-total // 10))]
    client = browse(arrays)
    text = client.get("/queue?sort=job&per_page=1000").text

    assert total == len(lines) == len(found) < 299
    assert [r["job_id"] for page in pages for r in page] == [r["job_id"] for r in found]
    for line, entry in zip(lines, found, strict=True):
        tasks = [int(n) for n in (entry["tasks"] or "").split(",") if n]
        assert (entry["arrival"], len(tasks) or 1) == (pytest.approx(line.arrival), _count(line.job_id))
        assert line.job_id in text or f"{line.job_id[:14]}…]" in text
    assert len(client.get("/api/queue.json?per_page=1000").json()["jobs"]) == 299
    assert f"{total} lines" in text and "299 jobs" in client.get("/queue?tasks=1").text
    numbers = [r["number"] for r in found]
    assert numbers == sorted(numbers)


def _count(job_id: str) -> int:
    """Tasks in ``12_[3-5,9]``."""
    inside = re.search(r"\[(.*)\]", job_id)
    parts = [part.split("-") for part in inside[1].split(",")] if inside else [["1"]]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in parts)


@pytest.mark.parametrize("query", ["user=ann", "state=running", "type=k80&sort=age&desc=1", "text=100", "user=bob"])
def test_folding_goes_with_filters(browse: Callable[..., TestClient], arrays: Path, query: str) -> None:
    """As many jobs on the folded lines as there are without folding."""
    client = browse(arrays)
    every = client.get(f"/api/queue.json?per_page=1000&{query}").json()["total"]
    text = client.get(f"/queue?per_page=1000&{query}").text

    tasks = [int(n) for n in re.findall(r"(\d+) tasks</small>", text)]
    assert text.count("<tr>") - (1 if every else 0) - len(tasks) + sum(tasks) == every


def test_ended_jobs(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """The last ones first, of one user, with one end; a name that looks like a user's field is none."""
    journal = Journal(tmp_path / "journal.db")
    journal.save_jobs(
        [
            *(
                JobRecord(
                    str(i),
                    user="ann" if i % 3 else "bob",
                    name="<b>",
                    ended=NOW + i,
                    final="COMPLETED" if i % 2 else "FAILED",
                    arrival=NOW,
                    workers=2,
                    ran_s={"k80": 50.0},
                )
                for i in range(250)
            ),
            JobRecord("900", user="eve", name='"user":"ann"', ended=NOW),
            JobRecord("901", user="ann"),
        ]
    )
    journal.close()
    client = browse(tmp_path / "journal.db")

    def ids(**query: object) -> list[int]:
        return [int(job["job_id"]) for job in client.get("/api/ended.json", params=query).json()["jobs"]]

    assert ids() == list(range(249, 149, -1)) and ids(page=2) == list(range(149, 49, -1))
    assert ids(user="ann", per_page=1000) == [i for i in range(249, -1, -1) if i % 3]
    assert ids(user="bob", final="FAILED", per_page=1000) == [i for i in range(249, -1, -1) if not i % 3 and not i % 2]
    assert ids(user='"') == ids(user="nobody") == []
    text = client.get("/ended").text
    assert "&lt;b&gt;" in text and "<b>" not in text and "older" in text and "newer" not in text
    assert "No job that is over matches" in client.get("/ended?user=x").text


def node_record(gpus: dict[str, int], **more: object) -> str:
    return json.dumps(
        {"gpus": gpus, "taken": {}, "available": True, "state": "mixed", "reason": "", "partitions": ["gpu"], **more}
    )


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two nodes, one drained; ann runs on both, a job of bob's is left to Slurm, carl waits."""
    journal = Journal(tmp_path / "journal.db")
    nodes = {
        "k80-2": node_record({"k80": 4}, available=False, state="drained", reason="fan <1>", partitions=["gpu", "old"]),
        "k80-10": node_record({"k80": 2}, cpus=[6, 32], memory_bytes=[24 << 30, 256 << 30], taken={"k80": 1}),
    }
    rows = [
        row("7", "ann", "running", '{"k80-2":{"k80":3},"k80-10":{"k80":1}}', gpus=4),
        row("8", "bob", "running", '{"k80-10":{"k80":1}}', partition="old"),
        row("9_1", "carl", arrival=NOW - 7200),
        row("9_2", "carl", arrival=NOW - 3600, gpus=2**62),
        row("10", "carl", arrival=NOW - 90_000),
    ]
    held = [Placement.of(json.loads(r[8])) for r in rows[:2]]
    runs = [
        Run("7", NOW - 3000, None, held[0], True),
        Run("3", NOW - 9000, NOW - 5000, held[1], True),
        Run("2", NOW - 900_000, NOW - 800_000, held[1], True),
    ]
    journal.add_round(RoundRecord(NOW - 60, "act", "hadar", jobs=5, running=2, use={"k80": (5, 6)}))
    journal.update_dashboard(NOW, DashboardChanges(queue=rows, nodes=nodes, runs=runs))
    wait = {"tier": "waits-by-policy", "why": "w"}
    pinned = {"tier": "pinned", "why": "held by its owner"}
    journal.replace_waits(1, {"8": pinned, "9_1": wait, "9_2": wait, "10": pinned})
    journal.save_jobs([JobRecord("7", user="ann"), JobRecord("3", user="zoe", ended=NOW - 5000)])
    journal.save_usage({("ann", "", "k80"): (7200.0, NOW), ("carl", "", "k80"): (90.0, NOW - 10 * 365 * 86400)})
    journal.close()
    return tmp_path / "journal.db"


@pytest.fixture
def at(mixed: Path) -> Any:
    """A client of :func:`mixed` at :data:`NOW`."""
    from starlette.testclient import TestClient

    from slurm_hadar.config import load
    from slurm_hadar.web.app import create_app

    return TestClient(create_app(mixed, load(), now=lambda: NOW), base_url="http://localhost")


def test_a_node(at: Any) -> None:
    """Its state and reason, what of it is in use, by whom and for how long, and who was there before."""
    data, text = at.get("/api/node/k80-10.json?span=6h").json(), at.get("/node/k80-10?span=6h").text

    assert data["cpus"] == [6, 32] and "6 of 32 allocated" in text and "24 GiB of 256 GiB allocated" in text
    assert data["types"][0]["gpus"] == ["7", "8"]  # and nobody a second time for being left to Slurm
    assert {job: entry["steered"] for job, entry in data["jobs"].items()} == {"7": True, "8": False}
    assert [run["job_id"] for run in data["latest"]] == ["7", "3"] and "50 min" in text
    assert {run["user"] for run in data["runs"]} == {"ann", "zoe"}
    drained = at.get("/node/k80-2").text
    assert "It takes no jobs: drained; fan &lt;1&gt;." in drained and "allocated" not in drained
    assert at.get("/node/nowhere").status_code == at.get("/api/node/nowhere.json").status_code == 404
    assert "this node is not known" in at.get("/node/nowhere").text


def test_the_overview_in_figures(at: Any) -> None:
    """GPUs in use and down, the oldest wait of a steered job, and no GPU counted twice."""
    data, text = at.get("/api/overview.json").json(), at.get("/").text

    (k80,) = data["types"]
    assert (k80["gpus"], k80["used"], k80["free"], k80["down"]) == (6, 5, 0, 1)
    assert data["oldest_wait"]["job_id"] == "9_1" and "2 h 00" in text
    assert [n["node"] for n in k80["nodes"]] == ["k80-2", "k80-10"]  # as people count
    assert data["trend"]["points"][0]["use"] == {"k80": [5, 6]}


def test_users(at: Any) -> None:
    """Who holds most first, GPUs by type, who waits, and what was used lately, old use counting less."""
    ann, bob, carl = sorted(at.get("/api/users.json").json()["groups"], key=lambda g: g["name"])

    assert (ann["gpus"], ann["holds"], ann["running"], ann["lately_gpu_s"]) == (4.0, {"k80": 4}, 1, 7200.0)
    assert (bob["gpus"], bob["waiting"], bob["oldest"]) == (1.0, 0, None)
    assert (carl["waiting"], carl["oldest"], carl["running"]) == (3, NOW - 90_000, 0)
    assert carl["wanted"] > 2**62 - 1 and carl["lately_gpu_s"] < 1.0
    text = at.get("/users").text
    assert "2.0 GPU-hours" in text and text.index("?user=ann") < text.index("?user=bob") < text.index("?user=carl")


def test_partitions(at: Any) -> None:
    """Nodes and GPUs of each, a node in two counting in both."""
    gpu, old = at.get("/api/partitions.json").json()["groups"]

    assert (gpu["name"], gpu["nodes"], gpu["down"], gpu["types"]) == ("gpu", 2, 1, {"k80": [5, 6]})
    assert (old["name"], old["nodes"], old["running"], old["types"]) == ("old", 1, 1, {"k80": [3, 4]})
    assert "5 of 6 k80" in at.get("/partitions").text


@pytest.mark.parametrize("page", ["timeline", "prices"])
def test_the_time_fits_the_data_at_first(at: Any, page: str) -> None:
    """A controller that began a minute ago shows a minute, not a day; what is asked for is shown."""
    for query, length_s in (("", 60.0), ("?span=1h", 3600.0), ("?span=7d", 604_800.0), ("?span=9y", 60.0)):
        data = at.get(f"/api/{page}.json{query}").json()
        assert data["until"] == NOW and data["until"] - data["since"] == length_s
    assert "fitted (60 s)" in at.get(f"/{page}").text


def test_the_report_and_the_overview_agree(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """The same figure in the same words, from the rounds of the last 7 days only."""
    journal = Journal(tmp_path / "journal.db")
    now = time.time()
    for age_s, blind_s in ((8 * 86400, 90_000.0), (3600, 41_000.0), (60, 43_000.0)):
        journal.update_dashboard(now, DashboardChanges(gain=Gain(now - age_s, "act", 36_000.0, blind_s)))
    report = worth_by_rounds(journal.gains(now - 7 * 86400))
    journal.close()
    client = browse(tmp_path / "journal.db")

    said = re.search(r"[+-][0-9.]+ % work per GPU-hour \([^)]*\)", client.get("/").text)[0]
    assert said == "+16.7 % work per GPU-hour (3.3 GPU-hours saved)" and said in report
    assert '<span class="big">+16.7 %</span>' in client.get("/").text
    assert client.get("/api/overview.json").json()["savings"]["share"] == pytest.approx(84 / 72 - 1)


@pytest.mark.parametrize(
    ("gpu_s", "words"),
    [(0.0, "0 GPU-seconds"), (90.0, "90 GPU-seconds"), (3000.0, "50 GPU-minutes"), (36_000.0, "10.0 GPU-hours"),
     (3.6e9, "1,000,000 GPU-hours")],
)  # fmt: skip
def test_gpu_time_in_a_unit_that_suits(gpu_s: float, words: str) -> None:
    """Never 0.01 hours."""
    assert gpu_time(gpu_s) == words


def test_a_loss_is_a_loss() -> None:
    """Less work per GPU-hour has its sign and its word."""
    found = saved(
        [
            {
                "mode": "act",
                "since": 0.0,
                "rounds": 1,
                "gpu_s": 100.0,
                "blind_s": 90.0,
                "measured_s": 0.0,
                "unknown_s": 0.0,
            }
        ]
    )
    assert headline(found) == "-10.0 % work per GPU-hour (10 GPU-seconds lost)"
