"""What the journal keeps of each round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.errors import StoreError
from slurm_hadar.model import Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy


class Says(Policy):
    """Lets all jobs wait, with the reason that the test says."""

    name = "says"
    why = ""

    def allocate(self, snapshot: Snapshot) -> Plan:
        return Plan(self.name, waits={j.job_id: Wait(Tier.TRANSIENT, self.why) for j in snapshot.steerable_jobs})


@pytest.mark.parametrize(
    "words",
    [
        "Slurm keeps it from starting (PartitionTimeLimit); tried again in {} s",
        "held by jobs that keep them now: 7 (did not save; asked again in {} s), 8",
        "waits for a better one for another {} min at most",
    ],
)
def test_a_countdown_is_no_news(bench: Callable[..., Any], words: str) -> None:
    """The same reason with fewer seconds to go is one entry of the history; another reason is another."""
    one, policy = bench(), Says()
    job = one.slurm.submit(1)
    controller = one.new_controller(policy=policy)

    for policy.why in (*(words.format(left) for left in (15, 10, 5)), "told to wait in 2 ways"):
        controller.run_round()

    said = [entry["why"] for entry in one.journal.history(job) if entry.get("kind") == "wait"]
    assert said == [words.format(15), "told to wait in 2 ways"]


class Full(Policy):
    """Lets all jobs wait for their turn, in words and of a kind that are others in each round."""

    name = "full"
    rounds = 0

    def allocate(self, snapshot: Snapshot) -> Plan:
        tier = (Tier.POLICY, Tier.CAPACITY)[self.rounds % 2]
        why = f"held by 10_{self.rounds}, 10_{self.rounds + 1} and {self.rounds} more"
        return Plan(self.name, waits={j.job_id: Wait(tier, why) for j in snapshot.steerable_jobs})


def rows(journal: Any, table: str, job: str) -> int:
    query = f"SELECT count(*) FROM {table} WHERE job_id = ?"
    return int(journal.connection.execute(query, (job,)).fetchone()[0])


def test_the_journal_does_not_grow_by_looking(bench: Callable[..., Any]) -> None:
    """A job that waits is one decision and one lease, however often it is looked at and whoever holds the GPUs; its
    history ends with what keeps it now."""
    one, policy = bench(), Full()
    job = one.slurm.submit(1)
    controller = one.new_controller(policy=policy)

    for policy.rounds in range(1, 6):
        controller.run_round()
        one.slurm.jobs[job] = replace(one.slurm.jobs[job], eligible=None)  # so that each round puts it off again

    assert (rows(one.journal, "decisions", job), rows(one.journal, "writes", job)) == (1, 1)
    first, now, lease = one.journal.history(job)
    assert (first["why"], now["why"]) == ("held by 10_1, 10_2 and 1 more", one.journal.wait(job)["why"])
    assert now["why"].startswith("held by 10_5, 10_6 and 5 more")
    assert lease["round"] == now["round"] == 5 and (now["kind"], now["mode"]) == ("wait", "act")


def test_a_controller_that_begins_again_knows_what_was_told(bench: Callable[..., Any]) -> None:
    """As `hadar run --once` does each time."""
    one, policy = bench(), Full()
    job = one.slurm.submit(1)

    for policy.rounds in range(3):
        one.new_controller(policy=policy).run_round()

    assert rows(one.journal, "decisions", job) == 1


def test_what_was_only_said_is_told_again_when_it_is_done(bench: Callable[..., Any]) -> None:
    one = bench({"v100-1": ("v100", 2)})
    job = one.slurm.submit(1)

    for mode in ("observe", "observe", "act"):
        one.new_controller(f"controller.mode={mode}").run_round()

    decided = [(e["kind"], e["mode"]) for e in one.journal.history(job) if "kind" in e]
    assert decided == [("start", "observe"), ("start", "act")]


def no_room(_number: int, _now: float, decisions: Iterable[object]) -> None:
    list(decisions)
    raise StoreError("database or disk is full", passes=True)


def test_what_could_not_be_written_down_is_told_later(bench: Callable[..., Any], monkeypatch: Any) -> None:
    one, policy = bench({"v100-1": ("v100", 2)}, "controller.mode=observe"), Full()
    job = one.slurm.submit(1)
    controller = one.new_controller(policy=policy)
    with monkeypatch.context() as full:
        full.setattr(one.journal, "add_decisions", no_room)
        controller.run_round()
    assert rows(one.journal, "decisions", job) == 0

    controller.run_round()

    assert rows(one.journal, "decisions", job) == 1
