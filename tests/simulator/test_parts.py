"""Throughput tables, faults, metrics and bounds, each by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import TraceError
from slurm_hadar.model import Form, Job, Mix, Node, Speed
from slurm_hadar.policies import registry
from slurm_hadar.simulator.outcome.bounds import lower_bounds
from slurm_hadar.simulator.outcome.metrics import busy_seconds, isolated_s
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.throughputs import Rates, load_table
from slurm_hadar.simulator.traces.model import TraceJob
from slurm_hadar.simulator.virtual.cluster import Interval
from slurm_hadar.simulator.virtual.faults import Outage, draw_faults, read_faults
from slurm_hadar.simulator.virtual.jobs import Terms, VirtualJob, restart_cost_s
from slurm_hadar.throughput.table import reference

# Throughputs

GAVEL = {
    "v100": {
        "('ResNet-18 (batch size 64)', 1)": {"null": 20.0},
        "('ResNet-18 (batch size 64)', 2)": {"null": 30.0, "('A3C', 2)": [0, 0]},
        "('A3C', 1)": {"null": 7.0},
    },
    "v100_unconsolidated": {"('ResNet-18 (batch size 64)', 2)": {"null": 24.0}},
    "k80": {"('ResNet-18 (batch size 64)', 1)": {"null": 2.0}, "('ResNet-18 (batch size 64)', 2)": {"null": 0.0}},
}


def table_file(folder: Path, content: object) -> Path:
    path = folder / "rates.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def speeds(rates: Rates, model: str, batch: int | None, workers: int) -> dict[str, Any]:
    job = TraceJob("j", 0.0, model, batch, workers, 1.0)
    return {t: (s.steps_per_s, s.spread) for t, s in rates.of(job, workers).items()}


def test_gavels_table(tmp_path: Path) -> None:
    """Rates are those of the whole job; a rate of 0 means that the job cannot run there."""
    table = load_table(table_file(tmp_path, GAVEL))
    rates, summed = Rates(table, ("v100", "k80")), Rates(table, ("v100", "k80"), summed=True)

    assert speeds(rates, "resnet18", 64, 1) == {"v100": (20.0, 1.0), "k80": (2.0, 1.0)}
    assert speeds(rates, "resnet18", 64, 2) == {"v100": (15.0, 0.8)}
    assert speeds(summed, "resnet18", 64, 2) == {"v100": (30.0, 0.8)}
    assert rates.guessed == set()


def test_what_the_table_lacks_is_estimated_and_told(tmp_path: Path) -> None:
    rates = Rates(load_table(table_file(tmp_path, GAVEL)), ("v100", "a100"))

    found = speeds(rates, "resnet18", 64, 1)

    assert found["v100"] == (20.0, 1.0) and found["a100"][0] > 20.0
    assert rates.guessed == {"resnet18:64 on 1 a100"}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{", "rates.json:1: is not valid JSON"),
        ({"v100": 3}, "rates.json: v100 must be an object of job types"),
        ({"v100": {"A3C": {"null": 1}}}, "rates.json: v100: key 'A3C' must read"),
        ({"v100": {"('A3C', 1)": {}}}, "'null' (the rate without co-location) must be a number"),
        ({"v100": {"('A3C', 1)": {"null": -1}}}, "must be a number of at least 0"),
        ({"v100": {"('A3C', 1)": {"null": 0}}}, "has no rates above 0"),
        ({"v100": {"('A3C', 0)": {"null": 1}}}, "rates.json: v100: key \"('A3C', 0)\": a job has from 1 to"),
        ({"v100": {f"('A3C', {'9' * 5000})": {"null": 1}}}, "rates.json: v100: key \"('A3C', 999"),
        ({"v100": {f"('A3C (batch size {'9' * 5000})', 1)": {"null": 1}}}, "v100: key: 'A3C (batch size 999"),
        ({"v100": {"('A3C (batch size 0)', 1)": {"null": 1}}}, "the batch size must be from 1 to"),
        ({"v100": {"('A3C', 1)": {"null": 10**400}}}, "rates.json: v100: ('A3C', 1): 'null' (the rate"),
        ({"_unconsolidated": {"('A3C', 1)": {"null": 1}}}, "rates.json: '_unconsolidated' names no GPU type"),
        ("model,batch\n", "rates.json:1: header must be"),
        ("# nothing\n", "has no rows"),
    ],
)
def test_bad_tables(tmp_path: Path, content: object, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        load_table(table_file(tmp_path, content))

    assert error in str(caught.value)


def test_our_own_table_and_a_missing_one(tmp_path: Path) -> None:
    rows = "model,batch,gpus,gpu_type,placement,steps_per_s,source\nmine,8,1,h100,one_node,50,me\n"

    assert speeds(Rates(load_table(table_file(tmp_path, rows)), ("h100",)), "mine", 8, 1) == {"h100": (50.0, 1.0)}
    assert load_table(None) is reference()
    with pytest.raises(TraceError, match="throughput table nowhere does not exist"):
        load_table(Path("nowhere"))


def test_restart_costs_by_family() -> None:
    """Sia's measurements, where a family is among them."""
    assert [restart_cost_s(m) for m in ("resnet18", "resnet50", "bertlarge", "lm", "")] == [30, 250, 120, 30, 30]


# Faults


def test_faults_from_a_file(tmp_path: Path) -> None:
    """In order of time; outages of a node that overlap are one."""
    path = tmp_path / "f.csv"
    path.write_text("# planned\nnode,down_s,up_s\nb,50,60\na,100,200\na,150,300\n")

    assert read_faults(path, ["a", "b"], 10.0).outages == (Outage("b", 50, 60), Outage("a", 100, 300))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "f.csv:1: header must be node,down_s,up_s"),
        ("node,down_s\n", "f.csv:1: header must be"),
        ("node,down_s,up_s\na,1\n", "f.csv:2: 2 fields where 3 are expected"),
        ("node,down_s,up_s\nz,1,2\n", "f.csv:2: node 'z' is not in the cluster; it has a ... b"),
        ("node,down_s,up_s\na,5,2\n", "f.csv:2: down_s must be at least 0 and before up_s"),
        ("node,down_s,up_s\na,x,2\n", "f.csv:2: down_s must be a number"),
    ],
)
def test_bad_fault_files(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text(text)

    with pytest.raises(TraceError) as caught:
        read_faults(path, ["a", "b"])

    assert error in str(caught.value)


def test_drawn_faults() -> None:
    """A node is away its share of the time, the same for the same seed, whoever else is in the cluster."""
    faults = draw_faults(["a", "b"], 900.0, 100.0, 1, 1e6)

    away = sum(o.up_s - o.down_s for o in faults.outages if o.node == "a")
    assert away / 1e6 == pytest.approx(0.1, abs=0.02)
    alone = draw_faults(["a"], 900.0, 100.0, 1, 1e6)
    assert [o for o in faults.outages if o.node == "a"] == list(alone.outages)
    with pytest.raises(TraceError, match="must be above 0"):
        draw_faults(["a"], 0.0, 1.0, 0, 1e6)


# Metrics


def virtual(workers: int, steps: float, **rates: float) -> VirtualJob:
    job = TraceJob("j", 0.0, "", None, workers, steps, steps_per_s=rates)
    return VirtualJob(job, Rates(reference(), ("v100", "k80")), Form(workers, 1, workers), Terms(), 0.0, 1.0)


@pytest.mark.parametrize(
    ("crowd", "expected_s"),
    [
        (1.0, 100 / 5.5),  # more than enough: half of the time on each type, since there are equally many
        (4.0, 100 / (0.5 * 10 + 0.5 * 1)),  # a share of 4 / (2 * 4) = 1/2 of each
        (16.0, 100 / (0.125 * 10 + 0.125 * 1)),
    ],
)
def test_the_isolated_time(crowd: float, expected_s: float) -> None:
    """A gang of two among 4 + 4 GPUs, at 10 and 1 steps/s, for 100 steps."""
    assert isolated_s(virtual(2, 100.0, v100=10.0, k80=1.0), crowd, {"v100": 4, "k80": 4}) == pytest.approx(expected_s)


def test_types_too_small_for_the_gang_give_no_share() -> None:
    job = virtual(4, 100.0, v100=10.0, k80=1.0)

    assert isolated_s(job, 1.0, {"v100": 2, "k80": 4}) == pytest.approx(100.0)
    assert isolated_s(job, 1.0, {"v100": 2, "k80": 2}) is None


def test_fairness_counts_those_who_were_there() -> None:
    """Two equal jobs on one GPU, one after the other: the first had company all along, the second half of the time."""
    jobs = tuple(TraceJob(n, 0.0, "", None, 1, 720.0, steps_per_s={"v100": 1.0}) for n in "ab")
    from slurm_hadar.simulator.traces.model import Trace

    result = simulate(Trace("t", "csv", jobs), registry.get("fifo"), SimOptions("v100:1x1"))

    assert [(j.jct_s, j.isolated_s, j.rho) for j in result.jobs] == [(720, 1440, 0.5), (1440, 1080, 1440 / 1080)]


def test_busy_seconds_count_a_node_once() -> None:
    held = [
        Interval("a", "n", "v100", 2, 0, 10),
        Interval("b", "n", "v100", 1, 5, 20),
        Interval("c", "m", "k80", 1, 30, 31),
    ]

    assert busy_seconds(held) == ({"v100": 35, "k80": 1}, 21)


# Bounds


def one(job_id: str, steps: float, workers: int = 1, arrival: float = 0.0, mix: Mix = Mix.NEVER, **rates: float) -> Job:
    speeds = {t: Speed(r, 0.5) for t, r in rates.items()}
    form = Form(workers, 1, workers, mix=mix)
    return Job(job_id, form, arrival=arrival, total_steps=steps, speeds=speeds)


V100 = (Node("n", {"v100": 1}),)
BOTH = (Node("n", {"v100": 1}), Node("m", {"k80": 1}))


@pytest.mark.parametrize(
    ("jobs", "nodes", "ttd_s"),
    [
        ([one("a", 100, v100=2)], V100, 50),
        ([one("a", 100, v100=2), one("b", 100, v100=1)], V100, 150),
        ([one("a", 100, v100=2), one("b", 100, 1, 500.0, v100=1)], V100, 600),  # from arrival on
        ([one("a", 300, v100=2, k80=1)], BOTH, 150),  # one place at a time
        ([one("a", 300, v100=2, k80=1), one("b", 300, v100=2, k80=1)], BOTH, 200),
        ([one("a", 100, 2, v100=2)], (Node("n", {"v100": 2}),), 50),
        ([one("a", 100, 2, v100=2)], (Node("n", {"v100": 1}), Node("m", {"v100": 1})), 100),  # must spread
        ([one("a", 100, 2, mix=Mix.GATED, v100=2, k80=1)], (Node("n", {"v100": 1, "k80": 1}),), 200 / 3),
    ],
)
def test_bounds_on_the_total_time(jobs: list[Job], nodes: tuple[Node, ...], ttd_s: float) -> None:
    assert lower_bounds(jobs, nodes, jct=False) == {"ttd_s": pytest.approx(ttd_s, rel=1e-6)}


def test_bounds_on_the_average_completion_time() -> None:
    """Exact for one job; for equal jobs in a row, or on two types (seven in a row on the faster, three on the slower),
    below what can be reached, and near it."""
    alone = lower_bounds([one("a", 100, 1, 7.0, v100=2)], V100)["avg_jct_s"]
    row = lower_bounds([one(str(i), 100, v100=1) for i in range(20)], V100)["avg_jct_s"]
    both = lower_bounds([one(str(i), 100, v100=1, k80=0.5) for i in range(10)], BOTH)["avg_jct_s"]

    assert alone == pytest.approx(50, rel=1e-6)
    assert 0.98 * 1050 < row <= 1050 + 1e-6 and 0.93 * 400 < both <= 400


def test_a_job_that_changes_places_ends_no_earlier_than_it_has_run() -> None:
    """Two jobs, of which one can be on the fast GPU at a time: all orders of the two, and all moves, take 145 s in the
    mean or more; work on the slow one, ten times as long, counts with its time."""
    bound = lower_bounds([one(name, 100, v100=1, k80=0.1) for name in "ab"], BOTH)["avg_jct_s"]

    assert 120 <= bound <= 145


def test_bounds_count_measured_jobs_only() -> None:
    from slurm_hadar.simulator.traces.model import Trace

    jobs = tuple(TraceJob(str(i), 10.0 * i, "", None, 1, 100.0, steps_per_s={"v100": 1.0}) for i in range(4))

    found = bounds_of(Trace("t", "csv", jobs), SimOptions("v100:1x1", measure=(1, 3)))

    assert found["ttd_s"] == pytest.approx(200, rel=1e-6) and lower_bounds([], V100) == {}
