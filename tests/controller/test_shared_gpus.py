"""Rounds over a Slurm in memory that gives out GPUs in shards, the first GPU with room first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.comment import read
from slurm_hadar.config import SharedBy, SharedGpus
from slurm_hadar.controller.act.seats import seated
from slurm_hadar.controller.answers.view import recorded_lines, recorded_nodes
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.observe.speeds.shared_gpus import UserPairings, fit_together
from slurm_hadar.controller.safety.guard import ChangeKind
from slurm_hadar.controller.words import sharing, summary
from slurm_hadar.messages import Report
from slurm_hadar.model import JobState, Snapshot
from slurm_hadar.policies import registry
from slurm_hadar.policies.check import check_plan
from slurm_hadar.sharing.lanes import Demand, GpuMemory, admit, find_lane
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.testing.fake_slurm import FakeSlurm
from slurm_hadar.throughput.profiles import ProfileStore
from tests.controller.scripted import report

LONG, SHORT = "hadar:model=resnet50,batch=32,steps=2000000,ckpt=yes", "hadar:model=resnet18,batch=32,steps=200,ckpt=yes"


class Shared:
    """A controller over nodes whose GPUs have four shards each."""

    def __init__(self, bench: Any, nodes: dict[str, tuple[str, int]], *settings: str) -> None:
        self.bench = bench(nodes, "policy.name=fifo", "jobs.start_timeout_s=1", *settings)
        self.slurm = self.bench.slurm = FakeSlurm(nodes, shards=4)
        self.controller = self.bench.new_controller()

    def submit(self, comment: str = LONG, shards: int = 1, **fields: Any) -> str:
        job = self.slurm.submit(comment=comment, shares=f"shard:{shards}", **fields)
        self.slurm.jobs[job] = replace(self.slurm.jobs[job], gpus=())
        return str(job)

    def job(self, job_id: str) -> SlurmJob:
        return self.slurm.jobs[job_id]

    def where(self, job_id: str) -> tuple[str, int | None]:
        job = self.job(job_id)
        return (job.nodes[0] if job.nodes else "", job.gpu_number)


@pytest.fixture
def shared(bench: Callable[..., Any]) -> Callable[..., Shared]:
    return lambda nodes, *settings: Shared(bench, nodes, *settings)


def test_each_has_a_gpu_of_its_own_while_there_are_some_and_then_the_short_ones_are_guests(
    shared: Callable[..., Shared],
) -> None:
    """Slurm would put the first four on one GPU: the shards that they ask for keep them apart, and leave room."""
    cluster = shared({"v100-1": ("v100", 3)})
    hosts = [cluster.submit() for _ in range(3)]
    result = cluster.controller.run_round()

    assert result.record.failed == 0
    assert sorted(map(cluster.where, hosts)) == [("v100-1", n) for n in range(3)]

    guests = [cluster.submit(SHORT) for _ in range(3)]
    for _ in guests:
        assert cluster.controller.run_round().record.failed == 0

    assert sorted(map(cluster.where, guests)) == [("v100-1", n) for n in range(3)]
    snapshot: Snapshot = cluster.controller.run_round().seen.snapshot
    assert {snapshot.job[g].host for g in guests} == set(hosts)


def test_who_shares_with_nobody_gets_a_whole_gpu_or_waits(shared: Callable[..., Shared]) -> None:
    """share=no; and the shards that its owner asked for come back to who waits."""
    cluster = shared({"v100-1": ("v100", 1)})
    proud = cluster.submit(SHORT + ",share=no")
    cluster.controller.run_round()
    assert cluster.job(proud).shares == "shard:4"

    other = cluster.submit(SHORT)
    cluster.controller.run_round()
    assert cluster.job(other).state is JobState.PENDING

    cluster.slurm.end(proud)
    cluster.controller.run_round()
    assert cluster.job(other).state is JobState.RUNNING and cluster.job(other).shares == "shard:2"


def test_jobs_that_slurm_has_crowded_on_one_gpu_go_to_free_ones(shared: Callable[..., Shared]) -> None:
    """Four on the first GPU, three of them idle beside it: who has nothing better stays where it accepts to be."""
    cluster = shared({"v100-1": ("v100", 2), "v100-2": ("v100", 1)})
    jobs = [cluster.submit() for _ in range(4)]
    for job in jobs:
        cluster.slurm.start(job, "v100-1")
    assert {cluster.where(j) for j in jobs} == {("v100-1", 0)}

    cluster.controller.run_round()

    places = [cluster.where(j) for j in jobs if cluster.job(j).state is JobState.RUNNING]
    assert {("v100-1", 0), ("v100-1", 1), ("v100-2", 0)} == set(places)


def test_company_of_a_job_that_is_left_to_slurm_is_left_to_it_too(shared: Callable[..., Shared]) -> None:
    """And its GPU counts as taken."""
    cluster = shared({"v100-1": ("v100", 1)})
    free, ours = cluster.submit(comment=""), cluster.submit()
    for job in (free, ours):
        cluster.slurm.start(job, "v100-1")
    waiting = cluster.submit(SHORT)
    snapshot = cluster.controller.run_round().seen.snapshot

    assert snapshot.job[ours].pinned == (
        f"shares its GPU with job {free}, which is left to Slurm: then so is everybody on it"
    )
    assert snapshot.node["v100-1"].steerable_gpus == {}
    assert cluster.job(waiting).state is JobState.PENDING


def test_jobs_of_two_users_and_jobs_that_accept_too_little_are_not_paired(shared: Callable[..., Shared]) -> None:
    """Brokers give turns to jobs of one user; by turns each has half, which share=1.5 does not accept."""
    cluster = shared({"v100-1": ("v100", 1)})
    cluster.submit()
    cluster.controller.run_round()
    bob = cluster.submit(SHORT, user="bob")
    modest = cluster.submit(SHORT + ",share=1.5")
    cluster.controller.run_round()
    assert {cluster.job(j).state for j in (bob, modest)} == {JobState.PENDING}

    guest = cluster.submit(SHORT)
    cluster.controller.run_round()
    assert cluster.job(guest).state is JobState.RUNNING


def test_jobs_of_two_users_are_paired_where_root_gives_turns_to_all(shared: Callable[..., Shared]) -> None:
    """By what is assumed; or by what was measured of the jobs of one of them."""
    cluster = shared({"v100-1": ("v100", 1)}, "jobs.shared_by=all")
    host = cluster.submit()
    cluster.controller.run_round()
    guest = cluster.submit(SHORT, user="bob")
    cluster.controller.run_round()
    assert cluster.where(guest) == cluster.where(host) == ("v100-1", 0)

    pairs = UserPairings(frozenset({"ann\x1fa", "bob\x1fb"}), frozenset({"v100"}), {}, SharedGpus.TURNS, SharedBy.ALL)
    assert pairs["ann\x1fa", "bob\x1fb", "v100"] == (0.5, 0.5)
    known = replace(pairs, measured={"bob": {("a", "b", "v100"): (0.9, 0.7), ("b", "a", "v100"): (0.7, 0.9)}})
    assert known["ann\x1fa", "bob\x1fb", "v100"] == (0.9, 0.7) and known["bob\x1fb", "ann\x1fa", "v100"] == (0.7, 0.9)
    assert known.known_by(("ann\x1fa", "bob\x1fb", "v100")) == "measured"
    assert ("ann\x1fa", "bob\x1fb", "v100") not in replace(known, shared_by=SharedBy.USER)


@pytest.mark.parametrize("name", ["srtf", "hadar", "gavel_las", "tiresias"])
def test_every_policy_keeps_its_contract_with_shards(shared: Callable[..., Shared], name: str) -> None:
    """Whole GPUs and shards in one queue: nobody is left out, and nothing planned is refused."""
    cluster = shared({"v100-1": ("v100", 2), "k80-1": ("k80", 1)}, f"policy.name={name}")
    jobs = [cluster.submit(LONG if n % 2 else SHORT) for n in range(4)]
    jobs += [cluster.slurm.submit(1, comment=LONG if n % 2 else SHORT) for n in range(3)]
    policy = registry.get(name)
    for _ in range(4):
        result = cluster.controller.run_round()
        assert result.record.failed == 0 and not result.record.note
        assert check_plan(result.seen.snapshot, policy.allocate(result.seen.snapshot)) == []
    running = [j for j in jobs if cluster.job(j).state is JobState.RUNNING]
    assert len(running) >= 3


def test_a_limit_on_shards_is_not_gone_beyond(shared: Callable[..., Shared]) -> None:
    """What would need more shards than its owner may have is not done, and said."""
    cluster = shared({"v100-1": ("v100", 2)})
    first = cluster.submit()
    cluster.controller.run_round()
    second = cluster.submit(shards=1)
    result = cluster.bench.new_controller("controller.mode=observe").run_round()
    seen: Observation = result.seen
    changes = seated(seen, result.changes, lambda _, shards: shards <= 2)

    (change,) = [c for c in changes if c.job_id == second]
    assert cluster.job(first).shards == 2
    assert change.kind is ChangeKind.WAIT and "may not ask for the 3 shards" in change.veto


def test_people_see_who_has_a_gpu_with_whom_and_what_that_costs(shared: Callable[..., Shared]) -> None:
    """In the journal's queue, on the nodes, and in the decision."""
    cluster = shared({"v100-1": ("v100", 1)})
    host = cluster.submit()
    cluster.controller.run_round()
    guest = cluster.submit(SHORT)
    cluster.controller.run_round()
    cluster.controller.run_round()
    journal = cluster.bench.journal

    lines = {line.job_id: line for line in recorded_lines(journal.queue_holding())}
    assert lines[guest].shares == {"gpu": 0, "with": [host], "keeps": 0.5, "known_by": "turns"}
    assert sharing(lines[host].shares) == f"GPU 0 with {guest}, keeps 50 % of its speed (turns)"
    (node,) = recorded_nodes(journal)
    assert node.free("v100") == 0 and [count for _, _, count in node.holders] == [1, 0]
    (start,) = [e for e in journal.history(guest) if e.get("kind") == "start"]
    assert start["why"] == f"on one GPU with job {host}: it keeps 50 % of its speed, that one 50 %"
    assert journal.job(guest).company == lines[guest].shares


def test_the_next_job_of_a_family_is_told_what_the_family_took(shared: Callable[..., Shared]) -> None:
    """With a margin, in its comment, when it is given its GPU; another user's is not."""
    cluster = shared({"v100-1": ("v100", 4)})
    first = cluster.submit(SHORT)
    cluster.controller.run_round()
    sizes = {"persistent_bytes": 500 << 20, "ephemeral_bytes": 1000 << 20, "iter_s": 0.125}
    report(cluster.bench, first, steps=10, steps_per_s=8.0, beside="", **sizes)
    cluster.controller.run_round()
    (needs,) = ProfileStore(cluster.bench.journal.connection).needs()
    assert (needs.workload, needs.user, needs.iter_s, needs.persistent_bytes) == (
        "resnet18:32",
        "alice",
        0.125,
        500 << 20,
    )

    second, foreign = cluster.submit(SHORT), cluster.submit(SHORT, user="bob")
    cluster.controller.run_round()

    assert read(cluster.job(second).comment)[0].needs_mib == (550, 1100)
    assert cluster.job(foreign).state is JobState.RUNNING and "needs=" not in cluster.job(foreign).comment


def test_who_is_left_alone_takes_his_company_with_him(shared: Callable[..., Shared]) -> None:
    """A guest, or its host, that a policy fails on: their GPU counts as taken, once."""
    cluster = shared({"v100-1": ("v100", 1)})
    host = cluster.submit()
    cluster.controller.run_round()
    guest = cluster.submit(SHORT)
    cluster.controller.run_round()
    snapshot: Snapshot = cluster.controller.run_round().seen.snapshot

    for one, other in ((guest, host), (host, guest)):
        left = snapshot.without({one: "it fails"})
        assert (left.job[one].pinned, left.job[other].pinned is None) == ("it fails", False)
        assert left.node["v100-1"].taken == {"v100": 1}
        assert check_plan(left, registry.get("srtf").allocate(left)) == []


SMALL = "hadar:model=small,batch=1,steps=200000,ckpt=yes"


def learned(cluster: Shared, duty: float = 0.16) -> str:
    """A small job that runs, of whose family it is known which share of its time it needs a GPU."""
    first = cluster.submit(SMALL)
    cluster.controller.run_round()
    report(cluster.bench, first, steps=10, steps_per_s=8.0, beside="", iter_s=0.02, duty=duty)
    cluster.controller.run_round()
    return first


def test_small_jobs_of_a_family_that_is_known_come_to_one_gpu(shared: Callable[..., Shared]) -> None:
    """A guest leaves room for the next; when all parts of the GPU are given away, the next one waits."""
    cluster = shared({"v100-1": ("v100", 1)})
    host = learned(cluster)
    jobs = [cluster.submit(SMALL) for _ in range(3)]
    for _ in jobs:
        result = cluster.controller.run_round()
        assert result.record.failed == 0 and not result.record.note

    running = [j for j in jobs if cluster.job(j).state is JobState.RUNNING]
    assert {cluster.where(j) for j in [host, *running]} == {("v100-1", 0)} and len(running) == 2
    assert [cluster.job(j).shards for j in [host, *running]] == [2, 1, 1]
    snapshot = cluster.controller.run_round().seen.snapshot
    assert {snapshot.job[j].host for j in running} == {host}
    assert [snapshot.job[j].duty["v100"] for j in running] == pytest.approx([0.16] * 2)

    lines = {line.job_id: line for line in recorded_lines(cluster.bench.journal.queue_holding())}
    others = ", ".join(running)
    assert sharing(lines[host].shares) == f"GPU 0 with {others}, keeps 100 % of its speed (duties)"
    (start,) = [e for e in cluster.bench.journal.history(running[1]) if e.get("kind") == "start"]
    assert start["why"] == (
        f"on one GPU with jobs {host}, {running[0]}: it keeps 100 % of its speed, each of those 100 % at least"
    )


def test_a_company_that_slows_a_job_by_more_than_it_accepts_is_undone(shared: Callable[..., Shared]) -> None:
    """Whatever their duties say: who came last goes, and does not come again to two of this family."""
    cluster = shared({"v100-1": ("v100", 1)})
    host = learned(cluster)
    guests = [cluster.submit(SMALL) for _ in range(2)]
    for _ in range(3):
        cluster.controller.run_round()
    assert {cluster.job(j).state for j in guests} == {JobState.RUNNING}
    report(cluster.bench, host, steps=20, steps_per_s=1.0, beside="+".join(guests), iter_s=0.02)

    for _ in range(4):
        assert cluster.controller.run_round().record.failed == 0

    states = sorted(str(cluster.job(j).state) for j in guests)
    assert states == [JobState.PENDING, JobState.RUNNING] and cluster.job(host).state is JobState.RUNNING


def test_without_a_known_duty_two_are_enough(shared: Callable[..., Shared]) -> None:
    """Another family's, or another user's where root gives turns to all."""
    cluster = shared({"v100-1": ("v100", 1)}, "jobs.shared_by=all")
    learned(cluster)
    guests = [cluster.submit(SMALL.replace("small", "other")), cluster.submit(SMALL, user="bob")]
    for _ in range(3):
        seen = cluster.controller.run_round().seen

    assert sorted(str(cluster.job(j).state) for j in guests) != [JobState.RUNNING] * 2
    assert seen.snapshot.job[guests[0]].duty == seen.snapshot.job[guests[1]].duty == {}


def test_when_the_host_ends_the_first_guest_is_the_host(shared: Callable[..., Shared]) -> None:
    """And the one that waited has the room that is left."""
    cluster = shared({"v100-1": ("v100", 1)})
    host = learned(cluster)
    jobs = [cluster.submit(SMALL) for _ in range(3)]
    for _ in jobs:
        cluster.controller.run_round()
    cluster.slurm.end(host)
    for _ in range(3):
        assert cluster.controller.run_round().record.failed == 0

    snapshot = cluster.controller.run_round().seen.snapshot
    assert {cluster.where(j) for j in jobs} == {("v100-1", 0)}
    assert sorted(snapshot.job[j].host is None for j in jobs) == [False, False, True]


@pytest.mark.parametrize("name", ["srtf", "hadar", "gavel_las"])
def test_every_policy_keeps_its_contract_with_small_jobs(shared: Callable[..., Shared], name: str) -> None:
    cluster = shared({"v100-1": ("v100", 2), "k80-1": ("k80", 1)}, f"policy.name={name}")
    learned(cluster)
    jobs = [cluster.submit(LONG if n % 3 == 0 else SMALL) for n in range(7)]
    policy = registry.get(name)
    for _ in range(5):
        result = cluster.controller.run_round()
        assert result.record.failed == 0 and not result.record.note
        assert check_plan(result.seen.snapshot, policy.allocate(result.seen.snapshot)) == []
    assert sum(cluster.job(j).state is JobState.RUNNING for j in jobs) >= 4


class _Agents:
    """A channel that notes what it is told to say."""

    quiet = False

    def __init__(self) -> None:
        self.told: list[tuple[str, float, float]] = []

    def order(self, job_id: str, kind: str, _why: str, share: float, for_s: float) -> bool:
        assert kind == "turns"
        self.told.append((job_id, share, for_s))
        return True


def test_a_short_job_gets_all_turns_and_the_long_one_is_told_to_give_way(shared: Callable[..., Shared]) -> None:
    """Every round anew; it is shown, reckoned with, and taken back when the short one has gone."""
    cluster, agents = shared({"v100-1": ("v100", 1)}, "controller.round_s=60"), _Agents()
    long, other = LONG.replace("ckpt=yes", "share=4"), SHORT.replace("ckpt=yes", "share=4")
    cluster.controller = cluster.bench.new_controller(channel=agents)
    host = cluster.submit(long)
    cluster.controller.run_round()
    cluster.bench.slurm.vouch(host)
    seq = Report("hello", host, 0, 1, "a" * 64, time.time(), "v100-1")
    cluster.bench.book.ingest(seq, identity=b"agent")
    record = cluster.controller.run_round().seen.records[host]
    record.attained_s = 3600.0
    guest = cluster.submit(other)

    result = cluster.controller.run_round()
    assert result.record.failed == 0 and cluster.where(guest) == ("v100-1", 0)
    assert agents.told == [(host, 0.0, 180.0)] and result.seen.records[guest].turns == 1.0

    snapshot = cluster.controller.run_round().seen.snapshot
    assert (snapshot.job[guest].host, snapshot.job[guest].turns, snapshot.job[host].gives_way) == (host, 1.0, True)
    assert agents.told[1:] == [(host, 0.0, 180.0)]
    report(cluster.bench, guest, steps=10, steps_per_s=9.0, beside=host)
    cluster.controller.run_round()
    assert ProfileStore(cluster.bench.journal.connection).everything() == []  # which is of equal turns
    shown = {one.job_id: sharing(one.shares) for one in recorded_lines(cluster.bench.journal.queue_holding())}
    assert shown == {
        guest: f"GPU 0 with {host}, has 100 % of the turns, keeps 100 % of its speed (turns)",
        host: f"GPU 0 with {guest}, gives it all turns, keeps 0 % of its speed (turns)",
    }
    cluster.slurm.end(guest)
    cluster.controller.run_round()
    assert agents.told[3:] == [(host, 0.5, 0.0)]


def test_a_jobs_gpu_time_is_its_part_of_a_shared_gpu(shared: Callable[..., Shared], monkeypatch: Any) -> None:
    """That of all of them is the GPU's. What policies go by counts it whole, as each is in its place."""
    cluster, real = shared({"v100-1": ("v100", 1)}), time.time
    jobs = [cluster.submit(LONG.replace("ckpt=yes", "share=4"))]
    cluster.controller.run_round()
    jobs.append(cluster.submit(SHORT.replace("ckpt=yes", "share=4")))
    for _ in range(3):
        before = cluster.controller.run_round().seen.records
    assert len({cluster.where(job) for job in jobs}) == 1
    had = {job: (before[job].attained_s, before[job].had_s) for job in jobs}

    monkeypatch.setattr(time, "time", lambda: real() + 4.0)  # no more: that would be a clock that was set
    after = cluster.controller.run_round().seen.records

    for job in jobs:
        whole_s, part_s = after[job].attained_s - had[job][0], after[job].had_s - had[job][1]
        assert whole_s > 3.9 and part_s == pytest.approx(whole_s / 2)
    assert "1 h 00 of GPU time" in summary(replace(after[jobs[0]], others_s=3600.0, attained_s=7200.0))


def test_who_cannot_be_told_keeps_equal_turns(shared: Callable[..., Shared]) -> None:
    """As where its agent has never spoken on the channel."""
    cluster = shared({"v100-1": ("v100", 1)})
    host = cluster.submit(LONG.replace("ckpt=yes", "share=4"))
    cluster.controller.run_round()
    record = cluster.controller.run_round().seen.records[host]
    record.attained_s = 3600.0
    guest = cluster.submit(SHORT.replace("ckpt=yes", "share=4"))
    for _ in range(2):
        seen = cluster.controller.run_round().seen

    assert seen.snapshot.job[guest].turns == 0.5 and not seen.snapshot.job[host].gives_way


@given(st.lists(st.integers(0, 20), min_size=4, max_size=4), st.integers(1, 40))
def test_two_fit_together_exactly_where_lanes_say_so(sizes: list[int], gpu: int) -> None:
    """The safety condition of the broker's, one lane for both."""
    one, other = (sizes[0], sizes[1]), (sizes[2], sizes[3])
    memory, fits = GpuMemory(gpu), True
    for name, taken in (("one", one), ("other", other)):
        demand = Demand(*taken)
        place = find_lane(memory, demand, 1)
        if place is None:
            fits = False
            break
        memory = admit(memory, name, demand, place)

    assert fit_together(one, other, gpu) == fits
    assert fit_together(one, None, gpu) and fit_together(one, other, None)


def test_pairs_that_do_not_fit_together_are_none() -> None:
    likenesses, types = frozenset({"u\x1fa", "u\x1fb"}), frozenset({"v100"})
    taken = {("u", "a"): (6, 5), ("u", "b"): (6, 5)}
    for room, known in ((16, False), (17, True)):
        pairs = UserPairings(likenesses, types, {}, SharedGpus.TURNS, taken=taken, gpu_bytes={"v100": room})
        assert (("u\x1fa", "u\x1fb", "v100") in pairs) == known
