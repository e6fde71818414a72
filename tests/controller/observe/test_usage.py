"""GPU-seconds per user, account and type: booked once, decaying, kept over restarts."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.journal import SCHEMA_VERSION, Journal
from slurm_hadar.controller.journal.schema import _SCHEMA
from slurm_hadar.controller.observe.company import part_of_gpu
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.errors import StoreError
from slurm_hadar.simulator.virtual.usage import UsageSums as Simulated
from slurm_hadar.testing.fake_slurm import FakeSlurm

MOMENT = 1e-6  # of so many seconds next to nothing decays


@given(st.lists(st.tuples(st.floats(0.0, 500.0), st.integers(1, 8)), min_size=1, max_size=8))
def test_however_a_stretch_is_cut_it_counts_the_same_live_and_simulated(pieces: list[tuple[float, int]]) -> None:
    """GPUs held one after the other: booked piece by piece, and as the simulator books them, out of order."""
    live, virtual = UsageBook(Journal(":memory:"), half_life_s=100.0), Simulated(100.0)
    now, stretches = 0.0, []
    for seconds, gpus in pieces:
        now += seconds
        stretches.append((gpus, now - seconds, now))
        for end in (now - seconds / 2, now):
            live.book("ann", "a", {"v100": float(gpus)}, seconds / 2, end)
    for gpus, start, end in reversed(stretches):
        virtual.add("ann", {"v100": gpus}, start, end)

    assert live.by_user(now)["ann"]["v100"] == pytest.approx(virtual.at(now).get("ann", {}).get("v100", 0.0), abs=1e-9)


def test_usage_halves_and_adds_up() -> None:
    """After one half-life a GPU-second counts half; what is booked then counts whole."""
    usage = UsageBook(Journal(":memory:"), half_life_s=100.0)
    usage.book("ann", "phys", {"v100": 80.0 / MOMENT, "k80": 10.0 / MOMENT}, MOMENT, at=1000.0)
    usage.book("ann", "chem", {"v100": 5.0 / MOMENT}, MOMENT, at=1100.0)
    usage.book("ann", "phys", {"v100": 1.0 / MOMENT}, MOMENT, at=1100.0)

    assert usage.by_user(1100.0) == {"ann": {"v100": pytest.approx(46.0), "k80": pytest.approx(5.0)}}
    assert usage.by_account(1200.0)["phys"] == {"v100": pytest.approx(20.5), "k80": pytest.approx(2.5)}


def test_usage_outlives_the_controller(tmp_path: Path) -> None:
    """What was saved is there again; what was not saved is lost, and nothing else."""
    path = tmp_path / "journal.db"
    usage = UsageBook(Journal(path), 100.0)
    usage.book("ann", "a", {"v100": 8.0 / MOMENT}, MOMENT, at=0.0)
    usage.save()
    usage.book("ann", "a", {"v100": 8.0 / MOMENT}, MOMENT, at=0.0)

    assert UsageBook(Journal(path), 100.0).by_user(100.0) == {"ann": {"v100": pytest.approx(4.0)}}


def test_a_journal_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """An older file keeps what it has and gains the table; one of a newer version is refused in one line."""
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as old:
        old.executescript(_SCHEMA + "PRAGMA user_version=1;INSERT INTO prices VALUES ('n', 't', 2.0);")
    old.close()
    journal = Journal(path)

    assert journal.prices() == {("n", "t"): 2.0} and journal.usage() == {}
    with journal.transaction() as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    journal.close()
    with pytest.raises(StoreError, match="newer slurm_hadar"):
        Journal(path)


def test_rounds_book_what_all_jobs_held(bench: Any) -> None:
    """Steered or not, each running GPU job's time counts for its user and account, by type, and once."""
    b = bench({"v100-1": ("v100", 4), "k80-1": ("k80", 4)})
    start = time.time() - 50
    for number, (user, node, gpus) in enumerate([("ann", "v100-1", 2), ("bob", "k80-1", 1), ("ann", "k80-1", 1)], 1):
        job = b.slurm.submit(gpus=gpus, user=user, account="lab", comment="mine" if number == 3 else "hadar:ckpt=yes")
        b.slurm.start(job, node)
        b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=start)
    controller = b.new_controller("controller.mode=observe")
    controller.run_round()
    seen = controller.run_round().seen.snapshot

    ran = seen.time - start
    assert seen.user_usage["ann"] == {"v100": pytest.approx(2 * ran, rel=1e-3), "k80": pytest.approx(ran, rel=1e-3)}
    assert seen.user_usage["bob"] == {"k80": pytest.approx(ran, rel=1e-3)}
    assert seen.account_usage == {
        "lab": {"v100": pytest.approx(2 * ran, rel=1e-3), "k80": pytest.approx(2 * ran, rel=1e-3)}
    }
    again = b.new_controller("controller.mode=observe").run_round().seen.snapshot
    assert again.user_usage["bob"]["k80"] == pytest.approx(again.time - start, rel=1e-3)


def test_a_gpu_that_several_share_is_booked_once(bench: Any) -> None:
    """Each has an equal part of it, also of one that the controller does not steer."""
    b = bench({"v100-1": ("v100", 1)})
    b.slurm, start = FakeSlurm({"v100-1": ("v100", 1)}, shards=4), time.time() - 50
    for user in ("ann", "ann", "bob"):
        job = b.slurm.submit(user=user, comment="hadar:ckpt=yes", shares="shard:1")
        b.slurm.jobs[job] = replace(b.slurm.jobs[job], gpus=())
        b.slurm.start(job, "v100-1")
        b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=start)

    b.new_controller("controller.mode=observe").run_round()
    seen = b.new_controller("controller.mode=observe").run_round().seen.snapshot

    ran = seen.time - start
    assert seen.user_usage == {
        "ann": {"v100": pytest.approx(2 / 3 * ran, rel=1e-3)},
        "bob": {"v100": pytest.approx(1 / 3 * ran, rel=1e-3)},
    }


def test_of_two_who_take_turns_each_has_its_share() -> None:
    """As it was last told; equal parts where it was not."""
    assert part_of_gpu({"with": ["2"], "turns": 0.875}) + part_of_gpu({"with": ["1"], "turns": 0.125}) == 1.0
    assert part_of_gpu({"with": ["2", "3"]}) == pytest.approx(1 / 3)
    assert part_of_gpu({"with": []}) == part_of_gpu(None) == part_of_gpu({}) == 1.0
