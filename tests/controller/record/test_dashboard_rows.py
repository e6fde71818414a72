"""What rounds leave for people to look at, and what placing by GPU type is said to be worth."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.controller.answers.view import picture_of, recorded_lines, recorded_nodes
from slurm_hadar.controller.journal import DashboardChanges, Journal, ReadOnlyJournal, RoundRecord
from slurm_hadar.controller.journal.gains import blind_rate, gain_of
from slurm_hadar.model import EMPTY, Form, Job, JobState, Node, Placement, Plan, Snapshot, Speed
from slurm_hadar.names import by_number

COMMENT = "hadar:model=resnet18,batch=64,steps=20000,lose=yes"
ON_V100, ON_K80 = Placement.of({"v100-1": {"v100": 2}}), Placement.of({"k80-1": {"k80": 2}})
KNOWN = {
    "v100": Speed(8.0, source="measured here 3 times on 2 v100", error=0.05, measured=True),
    "k80": Speed(2.0, source="published for resnet18; times 0.2 for k80 by the data sheets", error=0.5),
}


def queue(journal: Journal) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in journal.queue_page(limit=1000)[0]}


def test_the_queue_as_the_round_left_it(bench: Any) -> None:
    """Jobs that were told to start are about to; the next round sees them run; who waits says why."""
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)}, "policy.name=fifo")
    first, second, third = (b.slurm.submit(gpus=2, comment=COMMENT, user="ann", name="net") for _ in range(3))
    plain = b.slurm.submit(gpus=1, comment="")

    b.controller.run_round()
    then = queue(b.journal)

    starting = {job for job, row in then.items() if row["state"] == "starting"}
    assert len(starting) == 2 and starting < {first, second, third}
    assert all(json.loads(then[job]["held"]) and then[job]["types"] in ("v100", "k80") for job in starting)
    (waiting,) = {first, second, third} - starting
    assert then[waiting]["state"] == "pending" and json.loads(then[waiting]["wait"])["why"]
    lines = {line.job_id: line for line in recorded_lines(then.values())}
    assert lines[plain].tier == "pinned" and "no hadar: comment" in lines[plain].why
    assert lines[first].partition == "all" and lines[first].user == "ann" and lines[first].size == "stated"

    b.controller.run_round()
    assert {job for job, row in queue(b.journal).items() if row["state"] == "running"} == starting


def test_how_much_of_the_cluster_is_in_use(bench: Any) -> None:
    """GPUs of each type, whoever holds them, with each round; CPUs and memory with each node. No GPU counts twice."""
    b = bench({"v100-1": ("v100", 4), "k80-1": ("k80", 2)}, "policy.name=fifo")
    plain, ours = b.slurm.submit(gpus=1, comment="", num_cpus=6), b.slurm.submit(gpus=2, comment=COMMENT)
    b.slurm.start(plain, "v100-1")

    b.controller.run_round()
    assert b.journal.rounds(1)[0]["use"] == {"k80": [0, 2], "v100": [1, 4]}

    b.slurm.nodes["v100-1"] = replace(b.slurm.nodes["v100-1"], memory_bytes=64 << 30, memory_used_bytes=8 << 30)
    b.controller.run_round()
    assert sum(used for used, _ in b.journal.rounds(1)[0]["use"].values()) == 3
    node = b.journal.node_record("v100-1")
    assert node["cpus"][0] >= 6 and node["cpus"][1] == 32 and node["memory_bytes"] == [8 << 30, 64 << 30]
    views = {view.name: view for view in recorded_nodes(b.journal)}
    assert not any(view.others for view in views.values())
    assert sum(count for view in views.values() for _, _, count in view.holders) == 3
    assert {job for view in views.values() for job, _, _ in view.holders} == {plain, ours}


def test_observing_claims_nothing(bench: Any) -> None:
    """In mode observe nobody is about to start: the plan is only a plan."""
    b = bench({"v100-1": ("v100", 2)}, "controller.mode=observe")
    b.slurm.submit(gpus=2, comment=COMMENT)

    b.controller.run_round()

    assert {row["state"] for row in queue(b.journal).values()} == {"pending"}
    (gain,) = b.journal.gains()
    assert gain["mode"] == "observe" and gain["planned"] > 0


def test_what_slurm_refused_is_not_shown_as_done(bench: Any) -> None:
    """A job whose start failed goes on waiting."""
    b = bench({"v100-1": ("v100", 2)})
    job = b.slurm.submit(gpus=2, comment=COMMENT)
    b.slurm.refuse[job] = "Access denied"

    b.controller.run_round()

    assert queue(b.journal)[job]["state"] == "pending"


def test_numbers_beyond_reason_are_cut(bench: Any) -> None:
    """A job that asks for more GPUs than SQLite can count costs no round."""
    b = bench({"v100-1": ("v100", 2)})
    job = b.slurm.submit(gpus=2**63, nodes=10**9, comment=COMMENT, restarts=2**64)

    b.controller.run_round()

    assert queue(b.journal)[job]["gpus"] == 2**63 - 1


def test_only_what_changed_is_written(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round in which nothing happens writes no job, node or speed; an ended job is forgotten."""
    b = bench({"v100-1": ("v100", 2)})
    jobs = [b.slurm.submit(gpus=2, comment=COMMENT) for _ in range(20)]
    b.slurm.start(jobs[0], "v100-1")
    for _ in range(3):
        b.controller.run_round()
    seen: list[DashboardChanges] = []
    write = Journal.update_dashboard

    def noted(self: Journal, now: float, sight: DashboardChanges) -> None:
        seen.append(sight)
        write(self, now, sight)

    monkeypatch.setattr(Journal, "update_dashboard", noted)

    b.controller.run_round()
    assert (seen[0].queue, seen[0].nodes, seen[0].speeds, seen[0].runs) == ([], {}, {}, [])
    assert not any(seen[0].gone.values())

    again = b.new_controller()  # a restart goes on from what the journal has
    again.run_round()
    assert (seen[1].queue, seen[1].nodes, seen[1].speeds, seen[1].runs) == ([], {}, {}, [])

    b.slurm.end(jobs[0])
    again.run_round()
    assert jobs[0] in seen[2].gone["queue"] and jobs[0] not in queue(b.journal)
    assert len(seen[2].queue) <= 2  # it and who takes its place


def test_runs_are_those_that_slurm_showed(bench: Any) -> None:
    """From Slurm's own start to the round that does not see it there any more; a next run is another one."""
    b = bench({"v100-1": ("v100", 2)}, "controller.mode=observe")
    job = b.slurm.submit(gpus=2, comment="")
    b.slurm.start(job, "v100-1")
    began = b.slurm.jobs[job].start - 100
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], submit=began, start=began)
    b.controller.run_round()
    (run,) = b.journal.runs_of(job)
    assert (run.began, run.ended, run.held, run.steered) == (began, None, ON_V100, False)

    b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=began + 60, restarts=1)
    b.controller.run_round()
    first, second = b.journal.runs_of(job)
    assert (first.ended, second.began, second.ended) == (began + 60, began + 60, None)

    b.slurm.end(job)
    b.new_controller().run_round()  # also by a controller that did not see it begin
    assert all(run.ended is not None for run in b.journal.runs_of(job)) and b.journal.open_runs() == []


def test_prices_and_nodes_are_kept(bench: Any) -> None:
    """Prices per GPU type of every round, nodes with their state; what is older than it is kept for goes."""
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    for _ in range(6):
        b.slurm.submit(gpus=2, comment=COMMENT)
    b.controller.run_round()
    b.slurm.drain(["k80-1"])
    b.controller.run_round()

    assert {row["gpu_type"] for row in b.journal.price_history(0.0, 1e12)} >= {"v100"}
    nodes = {name: json.loads(text) for name, text in b.journal.node_texts().items()}
    assert nodes["v100-1"]["gpus"] == {"v100": 2} and not nodes["k80-1"]["available"]
    assert nodes["k80-1"]["reason"] == "test"

    b.journal.expire(time.time() + 1)
    assert b.journal.price_history(0.0, 1e12) == [] and b.journal.gains() == []
    assert len(b.journal.runs_since(0.0)) == len(b.journal.open_runs())


# What placing by type is worth


def job(number: int, placement: Placement = EMPTY, speeds: Any = KNOWN, **rest: Any) -> Job:
    state = JobState.RUNNING if placement else JobState.PENDING
    return Job(
        str(number),
        rest.pop("form", Form(2)),
        speeds=speeds,
        placement=placement,
        state=state,
        started=1000.0 if placement else None,
        **rest,
    )


def snapshot(*jobs: Job, k80: bool = True) -> Snapshot:
    nodes = (Node("v100-1", {"v100": 2}), Node("k80-1", {"k80": 2}, available=k80))
    return Snapshot(2000.0, nodes, jobs)


def test_the_blind_rate_is_the_average_over_gpus() -> None:
    """Types count as often as there are GPUs of them, and only those that the job accepts."""
    assert blind_rate(job(1), 2, 1, {"v100": 2, "k80": 2}) == 5.0
    assert blind_rate(job(1), 2, 1, {"v100": 1, "k80": 3}) == 3.5
    assert blind_rate(job(1, form=Form(2, types=frozenset({"k80"}))), 2, 1, {"v100": 2, "k80": 2}) == 2.0
    assert blind_rate(job(1, speeds={"v100": KNOWN["v100"]}), 2, 1, {"v100": 2, "k80": 2}) is None
    unknown = {**KNOWN, "k80": replace(KNOWN["k80"], error=None)}
    assert blind_rate(job(1, speeds=unknown), 2, 1, {"v100": 2, "k80": 2}) is None


def test_gains_and_losses_add_up() -> None:
    """On the fast type 8/5 of the average, on the slow one 2/5; identical jobs on all GPUs gain nothing."""
    fast = gain_of(snapshot(job(1, ON_V100)), None, "act", 1900.0)
    assert (fast.gpu_s, fast.measured_s) == (200.0, 200.0) and fast.blind_s == pytest.approx(320.0)

    slow = gain_of(snapshot(job(1, ON_K80)), None, "act", 1900.0)
    assert (slow.gpu_s, slow.measured_s) == (200.0, 0.0) and slow.blind_s == pytest.approx(80.0)

    both = gain_of(snapshot(job(1, ON_V100), job(2, ON_K80)), None, "act", 1900.0)
    assert both.gpu_s == pytest.approx(both.blind_s) == 400.0
    assert both.worth == pytest.approx(4.0) and both.planned is None


def test_only_time_that_was_seen_counts() -> None:
    """From the round before, or from its start; nothing in the first round, nor for pinned jobs."""
    assert gain_of(snapshot(job(1, ON_V100)), None, "act", None).gpu_s == 0.0
    assert gain_of(snapshot(job(1, ON_V100)), None, "act", 500.0).gpu_s == 2000.0
    assert gain_of(snapshot(job(1, ON_V100, pinned="no comment")), None, "act", 500.0).gpu_s == 0.0
    unknown = {t: replace(s, error=None) for t, s in KNOWN.items()}
    found = gain_of(snapshot(job(1, ON_V100, unknown)), None, "act", 1900.0)
    assert (found.gpu_s, found.unknown_s, found.worth) == (0.0, 200.0, 0.0)


def test_the_worth_of_a_plan() -> None:
    """What the plan would do against what runs, of jobs that a shadow round may have begun or stopped."""
    running, waiting = job(1, ON_K80), job(2)
    plan = Plan("p", {"1": ON_V100, "2": ON_K80})

    found = gain_of(snapshot(running, waiting), plan, "observe", 1900.0)

    assert (found.worth, found.planned) == pytest.approx((2 * 2 / 5, 2 * 8 / 5 + 2 * 2 / 5))


# Readers


def test_a_reader_leaves_no_trace(tmp_path: Path) -> None:
    """Neither file nor change of one, whether or not a controller has the journal open."""
    path = tmp_path / "journal.db"
    journal = Journal(path)
    with ReadOnlyJournal(path) as reader:
        assert reader.rounds() == []
    journal.close()
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}

    with ReadOnlyJournal(path) as reader:
        assert reader.rounds() == []

    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()} == before


def rounds_as_nobody(path: Path) -> str:
    """What a process of another user, who may write nothing beside the journal, reads of its rounds."""
    code = (
        "import os, pwd, sys; from pathlib import Path; from slurm_hadar.controller.journal import ReadOnlyJournal\n"
        "os.setgroups([]); os.setgid(pwd.getpwnam('nobody').pw_gid); os.setuid(pwd.getpwnam('nobody').pw_uid)\n"
        "with ReadOnlyJournal(Path(sys.argv[1])) as journal: print([r['mode'] for r in journal.rounds()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).resolve().parents[3],
        # measured for coverage it would write a file of its own, where it may not
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_may_read(short_tmp: Path) -> None:
    """As a dashboard with a user of its own: while a controller has the journal open, when it has ended, and when it
    was killed."""
    path, killed = short_tmp / "journal.db", short_tmp / "killed"
    journal = Journal(path)
    journal.add_round(RoundRecord(1.0, "act", "hadar"))
    assert rounds_as_nobody(path) == "['act']\n"
    killed.mkdir()
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        shutil.copy(short_tmp / name, killed / name)
    journal.close()
    assert rounds_as_nobody(path) == "['act']\n"

    assert rounds_as_nobody(killed / "journal.db") == "['act']\n"
    killed.chmod(0o700)
    assert "StoreError: cannot read the journal" in rounds_as_nobody(killed / "journal.db")
    assert sorted(p.name for p in killed.iterdir()) == ["journal.db", "journal.db-shm", "journal.db-wal"]


def test_slurm_away_is_said_and_the_last_round_shown(bench: Any, tmp_path: Path) -> None:
    """A look takes Slurm's word where it has it, and the journal's where not."""
    b = bench({"v100-1": ("v100", 2)}, f"controller.state_dir={tmp_path}")
    job_id = b.slurm.submit(gpus=2, comment=COMMENT, user="ann")
    config = b.config()

    without = picture_of(b.slurm, config, time.time())
    assert without.live and "no journal" in without.journal_fault and without.lines[0].user == "ann"

    journal = Journal(tmp_path / "journal.db")
    b.journal = journal
    b.new_controller().run_round()
    live = picture_of(b.slurm, config, time.time())
    b.slurm.away = True
    away = picture_of(b.slurm, config, time.time())
    journal.close()

    assert live.live and live.beat.alive and not live.fault
    assert not away.live and "does not answer" in away.fault
    assert [line.job_id for line in away.lines] == [job_id] and away.nodes[0].gpus == {"v100": 2}
    assert away.moves[0]["job_id"] == job_id


def test_nodes_are_sorted_as_people_count() -> None:
    """a2 comes before a10, and names without numbers do no harm."""
    names = ["a10", "a2", "b", "a", "2", "a2-10", "a2-9"]

    assert sorted(names, key=by_number) == ["2", "a", "a2", "a2-9", "a2-10", "a10", "b"]
