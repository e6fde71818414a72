"""What the pages and their JSON say."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from slurm_hadar.config import load
from slurm_hadar.controller.journal import (
    DashboardChanges,
    Gain,
    JobRecord,
    Journal,
    ReadOnlyJournal,
    RoundRecord,
)
from slurm_hadar.testing.journals import write_journal
from slurm_hadar.web.app import create_app
from slurm_hadar.web.drawing import gantt
from slurm_hadar.web.guard import HEADERS

PAGES = ("/", "/queue", "/job/1", "/node/a100-1", "/timeline", "/ended", "/users", "/partitions", "/prices")
SCRIPT = '<script src="/live.js" defer></script>'  # the only one that a page has


@pytest.mark.parametrize("page", PAGES)
def test_every_page_comes_with_its_data(client: TestClient, page: str) -> None:
    """Each page links to JSON that holds the same content."""
    text = client.get(page).text
    (address,) = re.findall(r'href="(/api/[^"]+)">as JSON', text)

    answer = client.get(html.unescape(address))

    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    assert answer.json()


def test_the_overview_names_who_holds_what(client: TestClient) -> None:
    """GPU types with their use, and each held GPU leads to its job."""
    text, data = client.get("/").text, client.get("/api/overview.json").json()

    assert [t["gpu_type"] for t in data["types"]] == ["a100", "k80", "p100", "v100"]
    held = {gpu for t in data["types"] for node in t["nodes"] for gpu in node["gpus"] if gpu}
    assert held and all(f'href="/job/{job}"' in text for job in held)
    assert sum(t["used"] for t in data["types"]) == sum(
        gpu is not None for t in data["types"] for node in t["nodes"] for gpu in node["gpus"]
    )
    assert "controller alive" in text


def test_savings_are_those_of_rounds_that_acted(client: TestClient) -> None:
    """The generated rounds do 20 % more per GPU-hour in mode act; those of mode observe are told apart."""
    data, text = client.get("/api/overview.json").json(), client.get("/").text

    assert data["savings"]["share"] == pytest.approx(0.2)
    assert data["savings"]["measured_share"] == pytest.approx(0.6)
    assert data["shadow"]["share"] == pytest.approx(1.25 / 1.1 - 1)
    assert "How this is reckoned" in text and "60 % of these GPU-hours the speed was measured" in text


@pytest.mark.parametrize(
    ("blind_s", "words"), [(3600 * 12.0, "2.0 GPU-hours saved"), (3600 * 9.0, "60 GPU-minutes lost"),
                           (3600 * 10.0 - 1e-9, "Neither saved nor lost")],
)  # fmt: skip
def test_losses_are_said_too(browse: Callable[..., TestClient], tmp_path: Path, blind_s: float, words: str) -> None:
    """10 GPU-hours that would have taken more, less, or as long."""
    journal = Journal(tmp_path / "journal.db")
    journal.update_dashboard(1.0, DashboardChanges(gain=Gain(time.time() - 60.0, "act", 36000.0, blind_s)))
    journal.close()

    assert words in browse(tmp_path / "journal.db").get("/").text


def test_nothing_is_claimed_where_nothing_is_known(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """Without a round there are no figures, and each page says so instead of failing."""
    Journal(tmp_path / "journal.db").close()
    client = browse(tmp_path / "journal.db")

    assert "Nothing is known yet" in client.get("/").text and "no round yet" in client.get("/").text
    assert client.get("/api/overview.json").json()["savings"] is None
    assert "No job matches" in client.get("/queue").text
    assert "No node has been seen" in client.get("/timeline").text
    assert "No prices" in client.get("/prices").text


@pytest.mark.parametrize("page", [*PAGES, "/queue?text=script", "/queue?sort=name"])
def test_names_of_jobs_are_never_markup(client: TestClient, page: str) -> None:
    """A job may be named as it likes: no page has its name as a tag."""
    assert "<script" not in client.get(page).text.replace(SCRIPT, "").lower()


def test_a_nasty_name_is_shown(client: TestClient) -> None:
    """It is escaped, not dropped."""
    assert html.escape('<script>alert("1")</script>', quote=False).replace('"', "&#34;") in client.get("/job/1").text


def test_what_a_reader_does_not_see_is_shown(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """The direction of writing turned in a job's name would forge the words behind it."""
    write_journal(tmp_path / "journal.db", time.time(), jobs=40, nodes=4, name="a\u202eb\u2066c").close()
    for page in ("/job/1", "/queue"):
        text = browse(tmp_path / "journal.db").get(page).text
        assert "a?b?c" in text and "\u202e" not in text and "\u2066" not in text


def test_settings_in_the_address_are_never_markup(client: TestClient) -> None:
    """What is asked for comes back in forms and links, escaped."""
    bad = '"><script>x</script>'
    for page in PAGES:
        text = client.get(
            page,
            params={
                "final": bad,
                "colour": bad,
                "tasks": bad,
                "text": bad,
                "user": bad,
                "type": bad,
                "span": bad,
                "sort": bad,
            },
        ).text
        assert "<script" not in text.replace(SCRIPT, "")


def ids(client: Any, **query: object) -> list[str]:
    return [job["job_id"] for job in client.get("/api/queue.json", params=query).json()["jobs"]]


def test_the_queue_is_filtered(client: TestClient) -> None:
    """By user, partition, state, GPU type and words, alone or together."""
    every = client.get("/api/queue.json", params={"per_page": 1000}).json()["jobs"]

    assert len(every) == 400
    cases: tuple[tuple[dict[str, str], Callable[[Any], bool]], ...] = (
        ({"user": "ann"}, lambda j: j["user"] == "ann"),
        ({"partition": "gpu", "state": "running"}, lambda j: (j["partition"], j["state"]) == ("gpu", "running")),
        ({"type": "k80"}, lambda j: "k80" in j["types"]),
        ({"text": "RESNET18"}, lambda j: "resnet18" in j["name"]),
        ({"text": "17"}, lambda j: j["job_id"] == "17" or "17" in j["name"]),
    )
    for query, matches in cases:
        found = ids(client, per_page=1000, **query)
        assert found and set(found) == {j["job_id"] for j in every if matches(j)}


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("job", lambda j: int(j["job_id"])),
        ("user", lambda j: j["user"]),
        ("gpus", lambda j: j["gpus"]),
        ("speed", lambda j: j["steps_per_s"]),
        ("done", lambda j: j["done_share"]),
        ("age", lambda j: -j["arrival"]),
        ("price", lambda j: j["price"]),
        ("start", lambda j: j["starts"] and j["starts"][0]),
    ],
)
def test_the_queue_is_sorted(client: TestClient, sort: str, key: Any) -> None:
    """Up and down; what is not known comes last both ways."""
    for desc in ("0", "1"):
        jobs = client.get("/api/queue.json", params={"sort": sort, "desc": desc, "per_page": 1000}).json()["jobs"]
        values = [key(job) for job in jobs]
        known = [v for v in values if v is not None]
        assert values[: len(known)] == known == sorted(known, reverse=desc == "1")


def test_the_queue_comes_in_pages(client: TestClient) -> None:
    """Every job is on exactly one page; pages that are not there are empty, and nonsense counts as the first."""
    pages = [ids(client, page=n, sort="job") for n in (1, 2, 3, 4, 5)]

    assert [len(p) for p in pages] == [100, 100, 100, 100, 0]
    assert len({job for page in pages for job in page}) == 400
    assert ids(client, page="-1", sort="job") == ids(client, page="x", sort="job") == pages[0]
    assert len(ids(client, per_page=10**12)) == 100


def test_a_job_that_waits_says_why_and_about_when_it_starts(client: TestClient) -> None:
    """Reason, price, what it would take, and the interval in which it is expected to start."""
    (job,) = ids(client, state="pending", per_page=1)
    data, text = client.get(f"/api/job/{job}.json").json(), client.get(f"/job/{job}").text

    assert html.escape(data["wait"]["why"]) in text
    assert "starts about" in text and "payoff" in text
    assert data["line"]["starts"] == data["wait"]["starts"]


def test_a_job_that_runs_shows_speeds_runs_and_history(client: TestClient) -> None:
    """Measured and estimated speeds are told apart, and the history reads as on the command line."""
    text = client.get("/job/1").text

    assert "<b>measured</b>: measured here 5 times" in text and "<b>estimated</b>" in text
    assert "Where it ran" in text
    assert "Slurm was told" in text and "start it on a100-1" in text and "run 2 from its checkpoint" in text


def test_a_wait_of_which_little_is_known(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """A pinned job has a reason and nothing else; ended jobs and unknown ones are told apart."""
    journal = Journal(tmp_path / "journal.db")
    number = journal.add_round(RoundRecord(time.time(), "act", "hadar"))
    journal.replace_waits(number, {"7": {"tier": "pinned", "why": "has no hadar: comment"}})
    journal.save_jobs([JobRecord("7", name="n"), JobRecord("8", ended=time.time(), final="DONE")])
    journal.close()
    client = browse(tmp_path / "journal.db")

    assert "is left to Slurm: has no hadar: comment" in client.get("/job/7").text
    assert "It has ended" in client.get("/job/8").text
    assert client.get("/job/9").status_code == client.get("/api/job/9.json").status_code == 404
    assert "not known to the controller" in client.get("/job/9").text


def test_an_infinite_price(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """A policy may forbid a GPU by its price: pages and JSON still come."""
    journal = Journal(tmp_path / "journal.db")
    number = journal.add_round(RoundRecord(time.time(), "act", "mine"))
    journal.replace_waits(number, {"7": {"tier": "waits-by-policy", "why": "dear", "price": float("inf")}})
    journal.replace_prices({("n1", "v100"): float("inf"), ("n2", "v100"): 2.0})
    row = ("u", "n", "p", "pending", 1, "v100", "{}", "-", 0.0, None, None, None, 0, 0, "", None, "w", None)
    journal.update_dashboard(1.0, DashboardChanges(queue=[("7", 1, *row)]))
    journal.close()
    client = browse(tmp_path / "journal.db")

    for page in ("/queue", "/job/7", "/prices"):
        assert client.get(page).status_code == 200
    assert client.get("/api/queue.json").json()["jobs"][0]["price"] is None
    assert client.get("/api/prices.json").json()["now"]["v100"]["high"] == 2.0


def test_copies_of_a_forked_job(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """The page of the parent and those of its copies name all copies and the common progress."""
    journal = Journal(tmp_path / "journal.db")
    row = (
        "u",
        "n",
        "p",
        "running",
        1,
        "v100",
        '{"n1":{"v100":1}}',
        "n1",
        0.0,
        0.0,
        5.0,
        0.5,
        0,
        0,
        "",
        None,
        "w",
        None,
    )
    queue = [("12_0", 1, *row), ("12_10", 2, *row), ("123", 3, *row)]
    journal.update_dashboard(1.0, DashboardChanges(queue=queue))
    journal.save_forks({"12": (3, 500, 1000.0, None)})
    journal.close()
    client = browse(tmp_path / "journal.db")

    for job in ("12", "12_0"):
        data = client.get(f"/api/job/{job}.json").json()
        assert [copy["job_id"] for copy in data["fork"]["copies"]] == ["12_0", "12_10"]
        assert "500 of 1000 steps are in consolidation 3" in client.get(f"/job/{job}").text
    assert client.get("/api/job/123.json").json()["fork"] is None


def test_the_timeline_shows_runs_of_its_time_only(client: TestClient, state: Path) -> None:
    """Each bar is a run that went on in the time shown, on a node of the type shown."""
    data = client.get("/api/timeline.json", params={"span": "6h", "type": "v100"}).json()

    assert data["runs"] and {run["gpu_type"] for run in data["runs"]} == {"v100"}
    assert all(run["ended"] is None or run["ended"] >= data["since"] for run in data["runs"])
    with ReadOnlyJournal(state / "journal.db") as journal:
        running = {r.job_id for r in journal.open_runs() if any(t == "v100" for _, t, _ in r.held.items())}
    assert running <= {run["job_id"] for run in data["runs"]}


def test_gpus_of_a_node_never_overlap_in_the_timeline(client: TestClient) -> None:
    """Bars on one node that go on at the same time lie on different rows, inside the node's lane."""
    drawn = gantt(client.get("/api/timeline.json").json())
    lanes = {lane["node"]: lane for lane in drawn["lanes"]}
    assert drawn["bars"]
    for bar in drawn["bars"]:
        lane = lanes[bar["run"]["node"]]
        assert lane["y"] <= bar["y"] and bar["y"] + bar["height"] <= lane["y"] + lane["height"]
        assert bar["x"] >= 0 and bar["x"] + bar["width"] <= 100.2
        for other in drawn["bars"]:
            same = other is bar or other["run"]["node"] != bar["run"]["node"]
            beside = other["x"] + other["width"] <= bar["x"] + 0.1 or bar["x"] + bar["width"] <= other["x"] + 0.1
            above = other["y"] + other["height"] <= bar["y"] or bar["y"] + bar["height"] <= other["y"]
            assert same or beside or above


def test_prices_over_time(client: TestClient) -> None:
    """A curve for each GPU type, dearer types above cheaper ones."""
    data, text = client.get("/api/prices.json").json(), client.get("/prices").text

    assert set(data["series"]) == {"a100", "v100", "p100", "k80"}
    assert all(p["low"] <= p["mean"] <= p["high"] for points in data["series"].values() for p in points)
    assert text.count("<polyline") == 4
    assert data["now"]["a100"]["mean"] > data["now"]["k80"]["mean"]


@pytest.mark.parametrize(
    ("age_s", "look", "words"),
    [(50, "good", "controller alive, last round 50 s ago"), (80, "late", "controller late: 1 round missed"),
     (150, "late", "controller late: 2 rounds missed"), (200, "bad", "controller silent for 3 min: 3 rounds missed"),
     (4000, "bad", "controller silent for 1 h 06")],
)  # fmt: skip
def test_how_the_controller_goes_on(
    browse: Callable[..., TestClient], tmp_path: Path, age_s: float, look: str, words: str
) -> None:
    """Amber after one missed round, red after three, each with its words; for a monitor it is silent then."""
    journal = Journal(tmp_path / "journal.db")
    journal.add_round(RoundRecord(time.time() - age_s, "observe", "hadar", read_s=1.0, round_s=60.0))
    journal.close()
    client = browse(tmp_path / "journal.db")

    assert re.search(rf'<span class="beat {look}">{words}', client.get("/").text)
    answer = client.get("/healthz")
    assert answer.status_code == 200 and answer.json()["controller"] == ("silent" if look == "bad" else "alive")
    assert answer.json()["missed_rounds"] == (age_s - 16) // 60


def test_a_slow_round_is_not_a_missed_one(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """The next one comes when it has ended: a round that takes half a minute is not late after a minute and a half."""
    journal = Journal(tmp_path / "journal.db")
    journal.add_round(RoundRecord(time.time() - 100, "act", "hadar", act_s=30.0, round_s=60.0))
    journal.close()

    assert "controller alive" in browse(tmp_path / "journal.db").get("/").text


@pytest.mark.thorough
def test_a_large_queue_costs_no_more_questions(
    browse: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs there are, a page asks the journal as often, and fetches no more rows than it shows."""
    counts: dict[int, dict[str, tuple[int, int]]] = {}
    for jobs in (150, 1500):
        path = tmp_path / f"{jobs}.db"
        write_journal(path, time.time(), jobs=jobs, nodes=8).close()
        client = browse(path)
        for page in (*PAGES, "/queue?sort=price&user=ann"):
            asked: list[int] = []

            def fetched(self: Any, sql: Any, args: Any = (), asked: Any = asked) -> Any:
                rows = self._db.execute(sql, args).fetchall()
                asked.append(len(rows))
                return rows

            def named(self: Any, sql: Any, args: Any = (), asked: Any = asked) -> Any:
                cursor = self._db.execute(sql, args)
                rows = [dict(zip([c[0] for c in cursor.description], row, strict=True)) for row in cursor]
                asked.append(len(rows))
                return rows

            monkeypatch.setattr("slurm_hadar.controller.journal.reading.Reader._query", fetched)
            monkeypatch.setattr("slurm_hadar.controller.journal.reading.Reader._rows", named)
            assert client.get(page).status_code == 200
            counts.setdefault(jobs, {})[page] = len(asked), max(asked)

    assert {page: n for page, (n, _) in counts[150].items()} == {page: n for page, (n, _) in counts[1500].items()}
    assert all(n <= 18 for n, _ in counts[1500].values())
    assert all(rows <= 960 for _, rows in counts[1500].values())  # four curves of 240 points


def test_a_page_that_is_still_the_same_is_not_made_again(tmp_path: Path) -> None:
    """As long as nothing is written, and for half a minute at most; the answer has the security headers too."""
    now = [time.time()]
    journal = Journal(tmp_path / "journal.db")
    journal.add_round(RoundRecord(now[0], "act", "hadar"))
    client = TestClient(create_app(tmp_path / "journal.db", load(), now=lambda: now[0]), base_url="http://localhost")

    def again() -> int:
        mark = client.get("/").headers["etag"]
        return client.get("/", headers={"if-none-match": mark}).status_code

    now[0] -= now[0] % 30
    mark = client.get("/").headers["etag"]
    answer = client.get("/", headers={"if-none-match": mark})
    assert (answer.status_code, answer.content) == (304, b"")
    assert all(answer.headers[name] == value for name, value in HEADERS.items())
    journal.add_round(RoundRecord(now[0], "act", "another"))
    assert "another" in client.get("/", headers={"if-none-match": mark}).text
    assert again() == 304
    mark = client.get("/").headers["etag"]
    now[0] += 31
    assert client.get("/", headers={"if-none-match": mark}).status_code == 200
    journal.close()


def test_who_shares_a_gpu_with_whom(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """In the queue, on the job's page and on the node's, where the GPU counts once."""
    journal = Journal(tmp_path / "journal.db")
    journal.add_round(RoundRecord(time.time(), "act", "mine"))
    row = ("u", "n", "p", "running", 1, "v100", '{"n1":{"v100":1}}', "n1", 0.0, 0.0, 5.0, 0.5, 0, 0, "", None, "w")
    node = {"gpus": {"v100": 1}, "taken": {}, "available": True, "state": "mixed", "reason": "", "partitions": ["p"]}
    queue = []
    for job, other, keeps in ((7, 9, 0.5), (9, 7, 0.25)):
        shares = {"gpu": 3, "with": [str(other)], "keeps": keeps, "known_by": "measured"}
        queue.append((str(job), job, *row, json.dumps(shares)))
    journal.update_dashboard(1.0, DashboardChanges(queue=queue, nodes={"n1": json.dumps(node)}))
    journal.close()
    client = browse(tmp_path / "journal.db")

    for page in ("/queue", "/node/n1", "/"):
        assert "GPU 3 with 9, keeps 50 % of its speed (measured)" in client.get(page).text, page
    assert "keeps 25 % of its speed: measured" in client.get("/job/9").text
    assert client.get("/api/queue.json").json()["jobs"][0]["shares"]["with"] == ["9"]
    (user,) = client.get("/api/users.json").json()["groups"]
    assert (user["gpus"], user["holds"], user["running"]) == (1.0, {"v100": 1.0}, 2)
    assert client.get("/api/partitions.json").json()["groups"][0]["gpus"] == 1.0
    assert "1 v100" in client.get("/users").text and "u: 1<" in client.get("/?colour=user").text
