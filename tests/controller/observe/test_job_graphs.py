"""Graphs of jobs in the controller: read from comments and files, refused for a reason, used in speeds."""

from __future__ import annotations

import getpass
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import load
from slurm_hadar.controller.observe.graphs import GraphBook, network_of
from slurm_hadar.errors import ConfigError
from slurm_hadar.messages import Report
from slurm_hadar.model import Form, Plan, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.testing.fake_slurm import FakeSlurm
from slurm_hadar.throughput.store import ThroughputStore

NODES = {f"v100-{i}": ("v100", 4) for i in range(1, 5)} | {"k80-1": ("k80", 4)}
HEAVY = "[[stage]]\ncompute_s = 0.01\nparameter_bytes = 1e9\nreplicas = 8\n"


class Watching(Policy):
    """Keeps what it sees, and leaves all jobs waiting."""

    name = "watching"

    def allocate(self, snapshot: Any) -> Any:
        self.seen = snapshot
        return Plan(self.name, {}, {j.job_id: Wait(Tier.POLICY, "told to wait") for j in snapshot.steerable_jobs})


@pytest.fixture
def watch(bench: Any) -> Any:
    """One round over some jobs: the snapshot, and the bench."""

    def go(*jobs: dict[str, Any], settings: tuple[str, ...] = (), switches: str = "") -> Any:
        b = bench(NODES, *settings)
        b.slurm.switches = switches
        for job in jobs:
            b.slurm.submit(**{"gpus": 4, "nodes": 2, "user": getpass.getuser(), **job})
        policy = Watching()
        controller = b.new_controller(policy=policy)
        controller.run_round()
        return policy.seen.job, b, controller, policy

    return go


def test_a_known_model_and_a_file(watch: Any, tmp_path: Path) -> None:
    """Both come to factors for 1, 2, 3, 4 nodes and for all parts apart; jobs without graph keep spread alone."""
    (tmp_path / "mine.toml").write_text(HEAVY)
    jobs, b, _, _ = watch(
        {"comment": "hadar:graph=vgg16,nodes=1-4,ckpt=yes"},
        {"comment": "hadar:graph=mine.toml,nodes=1-4", "work_dir": str(tmp_path)},
        {"comment": "hadar:nodes=1-4"},
    )
    assert len(jobs["1"].speeds["v100"].by_nodes) == len(jobs["2"].speeds["k80"].by_nodes) == 5
    assert jobs["1"].graph == "vgg16" and jobs["2"].graph.startswith("mine.toml#")
    assert jobs["3"].graph == "" and not jobs["3"].speeds["v100"].by_nodes
    heavy = jobs["2"].speeds
    assert heavy["v100"].on(2) == pytest.approx(heavy["v100"].on(1) * 0.0275 / 0.15)
    assert heavy["k80"].factor(2) > heavy["v100"].factor(2)  # what takes longer to compute suffers less
    assert not any(r.graph_fault for r in b.journal.load_jobs().values())


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("hadar:graph=none.toml", "there is no such file"),
        ("hadar:graph=pipe.toml", "is not a regular file"),
        ("hadar:graph=big.toml", "is larger than 65536 bytes"),
        ("hadar:graph=bad.toml", "stage 1: compute_s must be above 0"),
        ("hadar:graph=four.toml", "describes 4 GPUs, the job has 8"),
        ("hadar:graph=gpt9/pp2", "no graph is known for model 'gpt9'"),
        ("hadar:graph=gpt2/pp3", "takes a multiple of 3 GPUs, the job has 8"),
    ],
)
def test_a_graph_that_cannot_be_used_is_one_reason(
    watch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, comment: str, why: str
) -> None:
    """In the job's record, which explain shows, and once in the log; the job goes on without."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "big.toml").write_text("#" * 70_000)
    (tmp_path / "bad.toml").write_text(HEAVY.replace("0.01", "0"))
    (tmp_path / "four.toml").write_text(HEAVY.replace("8", "4"))
    with caplog.at_level(logging.WARNING):
        jobs, b, controller, _ = watch({"comment": comment, "work_dir": str(tmp_path)})
        controller.run_round()
    assert why in b.journal.load_jobs()["1"].graph_fault
    (told,) = [e["why"] for e in b.journal.history("1") if e.get("event") == "graph"]
    assert why in told
    assert jobs["1"].steerable and jobs["1"].graph == "" and not jobs["1"].speeds["v100"].by_nodes
    (said,) = [r.getMessage() for r in caplog.records if "graph" in r.getMessage()]
    assert said.startswith("job 1/0 is scheduled without its graph: ") and why in said


def test_a_file_that_its_owner_may_not_read_is_not_read_for_them(tmp_path: Path) -> None:
    """The controller may read more than users may."""
    secret = tmp_path / "secret.toml"
    secret.write_text("password = 1\n")
    secret.chmod(0o600)
    book = GraphBook(load(None, []).network)
    graph, why = book.of("1/0", "secret.toml", 8, str(tmp_path), "nobody-of-that-name", 0.0)
    assert graph is None and "neither belongs to nobody-of-that-name nor is readable by all" in why
    secret.chmod(0o644)
    assert "password" in book.of("2/0", "secret.toml", 8, str(tmp_path), "nobody-of-that-name", 0.0)[1]


def test_a_file_is_read_once_a_run_and_again_after_a_fault(tmp_path: Path) -> None:
    """A file that comes later is found; one that changes counts from the next start on."""
    book, user = GraphBook(load(None, []).network), getpass.getuser()
    assert "no such file" in book.of("1/0", "g.toml", 8, str(tmp_path), user, 0.0)[1]
    (tmp_path / "g.toml").write_text(HEAVY)
    assert "no such file" in book.of("1/0", "g.toml", 8, str(tmp_path), user, 10.0)[1]
    found = book.of("1/0", "g.toml", 8, str(tmp_path), user, 1000.0)[0]
    (tmp_path / "g.toml").write_text(HEAVY.replace("1e9", "1e6"))
    assert book.of("1/0", "g.toml", 8, str(tmp_path), user, 2000.0)[0] is found
    other = book.of("1/1", "g.toml", 8, str(tmp_path), user, 2000.0)[0]
    assert other is not None and found is not None and other.name != found.name


def test_an_elastic_job_keeps_the_sizes_that_its_graph_can_have(watch: Any, tmp_path: Path) -> None:
    """Four stages take a multiple of four GPUs; a file is one size; each size has factors of its own."""
    (tmp_path / "mine.toml").write_text(HEAVY)
    jobs, *_ = watch(
        {"comment": "hadar:graph=gpt2/pp4,gpus=2-16,nodes=1-4"},
        {"comment": "hadar:graph=mine.toml,gpus=2-16,nodes=1-4", "work_dir": str(tmp_path)},
    )
    assert jobs["1"].form.gang_sizes == (4, 8, 12, 16) and jobs["2"].form.gang_sizes == (8,)
    assert all(jobs["1"].speeds_at(n)["v100"].by_nodes for n in (4, 8, 12, 16))


def test_links_and_switches_come_from_the_configuration_and_from_slurm(watch: Any, tmp_path: Path) -> None:
    """A slow uplink counts for four nodes, which no switch has below it; Slurm is asked once."""
    (tmp_path / "mine.toml").write_text(HEAVY)
    job = {"comment": "hadar:graph=mine.toml,nodes=1-4", "work_dir": str(tmp_path)}
    tree = "SwitchName=s0 Nodes=v100-[1-2]\nSwitchName=s1 Nodes=v100-[3-4]\nSwitchName=top Switches=s[0-1]\n"

    def factors(*settings: str, switches: str = "") -> tuple[float, ...]:
        jobs, *_ = watch(job, settings=settings, switches=switches)
        return jobs["1"].speeds["v100"].by_nodes

    flat = factors()
    assert factors("network.outside_bytes_s=1e9")[1] < flat[1]
    assert factors("network.types.v100.outside_bytes_s=1e9")[1] < flat[1]
    assert factors("network.nodes.v100-4.outside_bytes_s=1e9")[1] < flat[1]
    assert factors("network.types.k80.outside_bytes_s=1e9") == flat
    crossed = factors("network.oversubscription=10", switches=tree)
    assert crossed[1] == flat[1] and crossed[3] < flat[3]
    assert factors("network.oversubscription=10", "network.uplinks={s0=1e12,s1=1e12}", switches=tree) == flat


def test_a_topology_that_is_not_understood_is_said_and_left_aside(watch: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        jobs, *_ = watch(
            {"comment": "hadar:graph=vgg16,nodes=1-4"},
            switches="BlockName=b1 Nodes=n1",
            settings=("network.uplinks={s9=1e9}",),
        )
    assert jobs["1"].speeds["v100"].by_nodes
    assert "as if all nodes were below one switch: topology line 1: blocks are not understood" in caplog.text
    assert "network.uplinks names switches that Slurm does not know: s9" in caplog.text


def test_slurm_is_asked_for_its_topology_once_and_only_for_graphs() -> None:
    calls = []

    class Counting(FakeSlurm):
        def topology(self) -> str:
            calls.append(1)
            return ""

    book, slurm = GraphBook(load(None, []).network), Counting(NODES)
    for _ in range(3):
        book.survey(slurm, NODES)
    assert len(calls) == 1
    book.survey(slurm, {"v100-1": ("v100", 4)})
    assert len(calls) == 2


def test_a_slurm_that_is_away_is_asked_again() -> None:
    """Its answer counts as soon as it comes."""
    book, slurm = GraphBook(load(None, ["network.oversubscription=10"]).network), FakeSlurm(NODES)
    slurm.switches = "SwitchName=s0 Nodes=v100-[1-2]\nSwitchName=s1 Nodes=v100-[3-4]\n"
    found = []
    for slurm.away in (True, False):
        book.survey(slurm, NODES)
        named, _ = book.of("1/0", "vgg16", 16, "", "", 0.0)
        assert named is not None
        factors = book.factors(named, Form(16, 1, 4), 16, ["v100"])
        assert factors is not None
        found.append(factors["v100"])
    assert found[1][3] < found[0][3]


def test_what_is_measured_is_filed_by_graph_and_number_of_nodes(watch: Any) -> None:
    """And the speed on that many nodes is then what was measured."""
    jobs, b, controller, policy = watch({"comment": "hadar:graph=vgg16,model=vgg16,batch=32,nodes=1-4"})
    b.slurm.start("1", "v100-1", "v100-2")
    b.slurm.vouch("1")
    for seq, steps in ((1, 10), (2, 30)):
        b.book.ingest(Report("report", "1", 0, seq, "a" * 64, time.time(), "v100-1", steps=steps, steps_per_s=3.0))
    controller.run_round()
    (measured,) = ThroughputStore(b.journal.connection).of("vgg16:32 vgg16", getpass.getuser())
    assert (measured.nodes, measured.gpus, measured.steps_per_s) == (2, 8, 3.0)
    seen = policy.seen.job["1"]
    assert seen.rate(seen.placement) == pytest.approx(3.0)
    assert seen.speeds["v100"].on(1) == pytest.approx(3.0 / jobs["1"].speeds["v100"].factor(2))


def test_the_configuration_says_what_is_wrong(tmp_path: Path) -> None:
    """File, key, and what would be right."""
    file = tmp_path / "hadar.toml"
    for text, why in (
        ("[network]\ninside_bytes_s = -1\n", "network.inside_bytes_s = -1: input should be greater than 0"),
        ("[network.types.v100]\nbandwidth = 1\n", "unknown key network.types.v100.bandwidth; valid here: inside_bytes"),
        ("[network]\noversubscription = 0.5\n", "network.oversubscription = 0.5: input should be greater than or"),
        ("[network.uplinks]\ns0 = 0\n", "network.uplinks.s0 = 0: input should be greater than 0"),
        ("[network]\noutside_bytes_s = inf\n", "network.outside_bytes_s = inf: input should be a finite number"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=f"{file}:2: .*") as refused:
            load(file)
        assert why in str(refused.value)
    file.write_text("[network.types.v100]\noutside_bytes_s = 5e9\n[network.nodes.n1]\ninside_bytes_s = 1e9\n")
    network = network_of(load(file).network)
    assert network.links("v100", "n1") == (1e9, 5e9) and network.links("k80", "n2") == (100e9, 12.5e9)


def test_thousands_of_jobs_cost_one_graph(watch: Any) -> None:
    """Jobs that name the same model share the graph and its factors."""
    jobs, *_ = watch(*({"comment": "hadar:graph=vgg16,nodes=1-4"} for _ in range(50)))
    one = jobs["1"].speeds["v100"].by_nodes
    assert all(job.speeds["v100"].by_nodes is one for job in jobs.values())
    assert all(job.form == Form(8, 1, 4) for job in jobs.values())
