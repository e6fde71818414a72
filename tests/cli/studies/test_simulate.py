"""``hadar simulate`` as it is typed."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.controller.journal import Journal
from slurm_hadar.throughput.profiles import ProfileStore

KEYS = {
    "policy", "seed", "cluster", "jobs", "avg_jct_s", "p50_jct_s", "p95_jct_s", "max_jct_s", "ttd_s", "gru", "cru",
    "avg_queueing_s", "ftf_mean", "ftf_max", "rounds", "restarts", "decide_total_s", "decide_mean_s", "decide_max_s",
    "lower_bound_ttd_s", "lower_bound_avg_jct_s",
}  # fmt: skip
TRACE = "job_id,arrival_s,gpus,steps,steps_per_s:v100\na,0,1,1000,1\nb,0,2,100,1\nc,50,1,100,2\n"


@pytest.fixture
def hadar(typed: Any) -> Any:
    """Run the command; returns (exit code, stdout, stderr)."""
    return partial(typed, "simulate")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    return str(path)


def test_json_on_stdout_is_all_there_is(hadar: Any, trace: str) -> None:
    code, out, err = hadar("--trace", trace, "--cluster", "v100:1x2", "--policy", "fifo", "--seed", "3", "--json", "-")

    summary = json.loads(out)
    assert (code, err) == (0, "") and summary.keys() >= KEYS
    assert (summary["jobs"], summary["seed"], summary["policy"]) == (3, 3, "fifo")
    assert summary["lower_bound_ttd_s"] <= summary["ttd_s"]


def test_a_table_for_people_and_files_for_programs(hadar: Any, trace: str, tmp_path: Path) -> None:
    code, out, _ = hadar(
        "--trace",
        trace,
        "--cluster",
        "v100:1x2",
        "--policy",
        "hadar",
        "--set",
        "objective=ttd",
        "--json",
        str(tmp_path / "r.json"),
        "--jobs-csv",
        str(tmp_path / "j.csv"),
    )

    rows = list(csv.DictReader((tmp_path / "j.csv").open()))
    assert code == 0 and "average JCT" in out and "times the lower bound" in out and "objective=ttd" in out
    assert json.loads((tmp_path / "r.json").read_text())["params"] == {"objective": "ttd"}
    assert list(rows[0])[:6] == ["job_id", "arrival_s", "first_start_s", "completion_s", "jct_s", "restarts"]
    assert sorted(r["job_id"] for r in rows) == ["a", "b", "c"]


def test_a_dash_prints_what_a_file_would_have(
    hadar: Any, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    common = ("--trace", trace, "--cluster", "v100:1x2", "--policy", "fifo")
    for option in ("--jobs-csv", "--trace-csv"):
        code, out, _ = hadar(*common, option, "-")
        assert code == 0 and sorted(row["job_id"] for row in csv.DictReader(out.splitlines())) == ["a", "b", "c"]
        code, out, err = hadar(*common, option, "-", "--json", "-")
        assert (code, out) == (2, "") and f"--json - and {option} - would print into each other" in err
    assert [file.name for file in tmp_path.iterdir() if file.name == "-"] == []


def test_gangs_may_be_mixed_for_all_jobs(hadar: Any, tmp_path: Path) -> None:
    """A gang of two that fits on no single type runs once it may mix, at the pace of the slower."""
    path = tmp_path / "t.csv"
    path.write_text("job_id,arrival_s,gpus,steps,steps_per_s:v100,steps_per_s:k80\na,0,2,360,2,1\n")
    common = ("--trace", str(path), "--cluster", "v100+k80:1x1", "--policy", "fifo", "--json", "-")

    apart, mixed = hadar(*common), hadar(*common, "--mix", "gated")

    assert apart[0] == 1 and mixed[0] == 0 and json.loads(mixed[1])["ttd_s"] == pytest.approx(360)


def test_a_bound_that_cannot_be_found_takes_no_result_with_it(hadar: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    jobs = ("a,0,1,1e-9,1e-9,1", "b,1e10,1,1e15,1e15,1", "c,5,2,1,1,1e-6", "d,6,1,100,1,1e6")
    path.write_text("\n".join(["job_id,arrival_s,gpus,steps,weight,steps_per_s:v100", *jobs]) + "\n")

    _, out, err = hadar("--trace", str(path), "--cluster", "v100:1x4", "--policy", "fifo", "--json", "-")

    assert json.loads(out)["lower_bound_avg_jct_s"] is None and json.loads(out)["avg_jct_s"] > 0
    assert "hadar: the lower bound on average JCT cannot be computed" in err


def test_bounds_cost_nothing_where_nobody_wants_them(hadar: Any, trace: str) -> None:
    _, out, _ = hadar("--trace", trace, "--cluster", "v100:1x2", "--policy", "fifo", "--no-bounds", "--json", "-")

    assert json.loads(out)["lower_bound_ttd_s"] is None


@pytest.mark.thorough
def test_a_drawn_trace_can_be_kept(hadar: Any, tmp_path: Path) -> None:
    """And simulated again from the file, to the same end."""
    kept = tmp_path / "drawn.csv"
    common = ("--policy", "fifo", "--no-bounds", "--json", "-")

    _, drawn, _ = hadar("--trace", "philly:jobs=5", "--seed", "4", "--trace-csv", str(kept), *common)
    _, again, _ = hadar("--trace", str(kept), *common)

    assert json.loads(drawn)["avg_jct_s"] == json.loads(again)["avg_jct_s"]
    assert json.loads(drawn)["trace"] == "philly:jobs=5,seed=4,multi=yes,rate=0"


def test_gavels_model_with_its_table(hadar: Any, tmp_path: Path) -> None:
    (tmp_path / "t.trace").write_text("A3C\tc\td\t-n\t0\t7000\t1\t1\t-1\t0\n")
    (tmp_path / "r.json").write_text(json.dumps({"v100": {"('A3C', 1)": {"null": 7.0}}}))

    code, out, _ = hadar(
        "--trace",
        str(tmp_path / "t.trace"),
        "--throughputs",
        str(tmp_path / "r.json"),
        "--model",
        "gavel",
        "--cluster",
        "v100:1x1",
        "--policy",
        "fifo",
        "--json",
        "-",
    )

    assert code == 0 and json.loads(out)["ttd_s"] == pytest.approx(1000)


def test_nothing_done_is_a_failure(hadar: Any, tmp_path: Path) -> None:
    """One line, exit code 1, and the JSON says which jobs and why."""
    path = tmp_path / "t.csv"
    path.write_text("job_id,arrival_s,gpus,steps,steps_per_s:v100\nbig,0,9,1000,1\n")

    code, out, err = hadar("--trace", str(path), "--cluster", "v100:1x2", "--policy", "fifo", "--json", "-")

    assert code == 1 and err.startswith("hadar: no job was done: job big: needs 9 GPUs") and err.count("\n") == 1
    assert json.loads(out)["unfinished"].keys() == {"big"} and json.loads(out)["avg_jct_s"] is None


def test_the_sites_configuration_holds_where_it_is_named(hadar: Any, trace: str, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[controller]\nround_s = 100\nevent_round_s = 0\n[guard]\nmax_preemptions = 0\n")

    common = ("--trace", trace, "--cluster", "v100:1x2", "--policy", "fifo", "--no-bounds", "--json", "-")
    _, own, _ = hadar(*common, "--config", str(config))
    _, both, _ = hadar(*common, "--config", str(config), "--round", "50")

    assert (json.loads(own)["round_s"], json.loads(both)["round_s"]) == (100, 50)


def test_no_job_weighs_more_than_the_site_grants(hadar: Any, tmp_path: Path) -> None:
    """Where a configuration is named; what is not simulated of the guard is told."""
    trace, config = tmp_path / "w.csv", tmp_path / "c.toml"
    rows = [f"{n},0,{'ab'[n % 2]},1,1000,{100 if n % 2 else 1},1" for n in range(8)]
    trace.write_text("job_id,arrival_s,account,gpus,steps,weight,steps_per_s:v100\n" + "\n".join(rows) + "\n")

    def ends(*guard: str) -> tuple[list[float], str]:
        config.write_text("[guard]\n" + "\n".join(guard) + "\n")
        words = ("--trace", str(trace), "--cluster", "v100:1x1", "--config", str(config), "--no-bounds")
        code, said, _ = hadar(*words, "--jobs-csv", str(tmp_path / "jobs.csv"))
        assert code == 0
        jobs = list(csv.DictReader((tmp_path / "jobs.csv").read_text().splitlines()))
        return [sum(float(j["jct_s"]) for j in jobs if int(j["job_id"]) % 2 == odd) for odd in (0, 1)], said

    (light, heavy), said = ends("max_weight = 1000")
    assert heavy < 0.6 * light and "guard" not in said
    (light, heavy), said = ends()
    assert heavy > 0.8 * light and "4 of 8 jobs weigh no more than guard.max_weight grants them" in said
    (light, heavy), said = ends('exempt_users = ["a"]', "[guard.max_weight_by_account]", "b = 1000")
    assert heavy < 0.6 * light and "exempt_partitions are not simulated" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "Missing option '--trace'"),
        (("--trace", "none.csv"), 1, "hadar: trace none.csv does not exist"),
        (("--trace", "T", "--policy", "magic"), 1, "hadar: no policy is called 'magic'"),
        (("--trace", "T", "--policy", "fifo", "--set", "x=1"), 1, "hadar: policy fifo has no parameter 'x'"),
        (("--trace", "T", "--set", "x"), 1, "hadar: --set 'x' must read key=value"),
        (("--trace", "T", "--cluster", "v100"), 1, "hadar: nodes 'v100': must be type:nodesxGPUs"),
        (("--trace", "T", "--measure", "5"), 2, "'5' must be A:B"),
        (("--trace", "T", "--measure", "7:9"), 1, "--measure 7:9 leaves none of its 3 jobs"),
        (("--trace", "T", "--round", "-5"), 1, "hadar: round length -5 s: must be above 0"),
        (("--trace", "T", "--round", "0.5"), 1, "hadar: round length 0.5 s: must be from 1 to 86400"),
        (("--trace", "T", "--round", "0"), 1, "hadar: round length 0 s: must be above 0"),
        (("--trace", "T", "--round", "nan"), 2, "'--round': nan is not a finite number."),
        (("--trace", "T", "--phase", "nan"), 2, "'--phase': nan is not a finite number in the range -1"),
        (("--trace", "T", "--mtbf", "inf"), 2, "'--mtbf': inf is not in the range 0.1<=x<=1000000.0"),
        (("--trace", "T", "--mtbf", "1e-9"), 2, "'--mtbf': 1e-09 is not in the range"),
        (("--trace", "T", "--share", "--slow-down", "nan"), 2, "'--slow-down': nan is not a finite number."),
        (("--trace", "T", "--cluster", ""), 1, "hadar: nodes '': must be type:nodesxGPUs"),
        (("--trace", "T", "--format", "gavel"), 1, "t.csv:1: 1 fields where 10 are expected"),
        (("--trace", "T", "--policy", "none", "--cluster", "v100:1x2"), 1, "policy none leaves the jobs to Slurm"),
        (("--trace", "T", "--mtbf", "5", "--faults", "f"), 2, "exclude each other"),
    ],
)
def test_errors_are_one_line(hadar: Any, trace: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    got, out, err = hadar(*(trace if a == "T" else a for a in arguments))

    assert got == code and said in err and out == "" and (code == 2 or err.count("\n") == 1)


def test_failing_nodes(hadar: Any, tmp_path: Path, trace: str) -> None:
    """From a file, and drawn from the seed."""
    faults = tmp_path / "f.csv"
    faults.write_text("node,down_s,up_s\nv100-1,100,200\n")
    common = ("--trace", trace, "--cluster", "v100:1x2", "--policy", "fifo", "--no-bounds", "--json", "-")

    plain, failing, drawn = (
        json.loads(hadar(*common, *more)[1])
        for more in ((), ("--faults", str(faults)), ("--mtbf", "0.1", "--mttr", "0.02", "--seed", "1"))
    )

    assert failing["restarts"] > 0 == plain["restarts"] and failing["ttd_s"] > plain["ttd_s"]
    assert drawn["restarts"] > 0


def test_forked_jobs(hadar: Any, tmp_path: Path) -> None:
    """Two nodes halve the time of a lone job, and it is one job in the result."""
    file, rows = tmp_path / "t.csv", tmp_path / "rows.csv"
    file.write_text("job_id,arrival_s,gpus,steps,steps_per_s:v100\na,0,1,10000,1\n")
    scene = ("--trace", str(file), "--cluster", "v100:2x1", "--policy", "hadare", "--consolidation", "0")
    code, out, _ = hadar(*scene, "--fork", "auto", "--json", "-", "--jobs-csv", str(rows))
    assert code == 0 and json.loads(out)["ttd_s"] == pytest.approx(5000.0)
    assert json.loads(out)["lower_bound_ttd_s"] == pytest.approx(5000.0)
    assert [r["job_id"] for r in csv.DictReader(rows.open())] == ["a"]
    assert json.loads(hadar(*scene, "--json", "-")[1])["ttd_s"] == pytest.approx(10_000.0)
    code, _, err = hadar(*scene, "--consolidation", "1.5")
    assert code == 1 and "overhead must lie" in err
    code, _, err = hadar(*scene, "--fork", "auto", "--model", "gavel")
    assert code == 1 and "fork=auto with model gavel" in err


def test_a_predictor_with_a_history(hadar: Any) -> None:
    """Two parts of one drawn life; the load of both is that of the cluster."""
    life = "recurring:jobs=60,seed=1"
    code, out, _ = hadar(
        "--trace",
        f"{life},part=40:60",
        "--history",
        f"{life},part=0:40",
        "--predictor",
        "group_mean",
        "--cluster",
        "v100:2x4",
        "--policy",
        "srtf",
        "--no-bounds",
    )
    assert code == 0 and "20 jobs measured" in out
    assert "learned from 40 jobs of recurring:jobs=60,users=40,gpus=8,load=0.8,comm=0.3,seed=1,part=0:40" in out
    code, _, err = hadar("--trace", f"{life},part=40:60", "--history", f"{life},part=0:40")
    assert code == 1 and "name the predictor that shall learn from it" in err


def test_who_cannot_be_moved_speeds_that_are_wrong_and_elastic_sizes(hadar: Any, tmp_path: Path) -> None:
    """The options reach the simulation: nobody is stopped, and the table's speed at two GPUs is not the law's."""
    path = tmp_path / "t.csv"
    path.write_text(
        "job_id,arrival_s,gpus,steps,model,batch\n" + "".join(f"{i},{i},1-2,50000,resnet18,64\n" for i in "123")
    )
    common = ("--trace", str(path), "--cluster", "v100:1x2,k80:1x2", "--no-bounds", "--json", "-")

    plain, fixed, table = (
        json.loads(hadar(*common, *more)[1])
        for more in ((), ("--unmovable", "1", "--speed-error", "0.9"), ("--elastic", "table"))
    )

    assert fixed["restarts"] == fixed["moves"] == 0 and fixed["avg_jct_s"] != plain["avg_jct_s"]
    assert table["avg_jct_s"] != plain["avg_jct_s"]
    assert hadar(*common, "--unmovable", "2")[0] == 2


def test_jobs_share_gpus_and_it_is_told(hadar: Any, tmp_path: Path) -> None:
    """Two workloads that Gavel measured together; one of the two jobs says how much slower it may become."""
    path = tmp_path / "t.csv"
    path.write_text("job_id,arrival_s,gpus,steps,model,batch,share\n1,0,1,400000,resnet18,32,\n2,0,1,4000,lm,10,3\n")
    given = ("--trace", str(path), "--cluster", "v100:1x1", "--policy", "fifo")

    code, out, err = hadar(*given, "--share", "--json", "-")
    summary = json.loads(out)
    assert (code, err) == (0, "") and summary["lower_bound_ttd_s"] is None
    assert summary["sharing"]["share"] == "beside" and summary["sharing"]["pairs"] == 1

    code, out, _ = hadar(*given, "--share", "turns", "--slow-down", "2")
    assert code == 0 and "GPU-hours with two jobs" in out and "lower bound" not in out
    assert "sharing" not in json.loads(hadar(*given, "--json", "-")[1])


def test_what_jobs_measured_of_each_other_goes_into_a_simulation(hadar: Any, tmp_path: Path) -> None:
    """As a controller files it, of a model that nobody has published anything of."""
    path, journal = tmp_path / "t.csv", tmp_path / "journal.db"
    path.write_text("job_id,arrival_s,gpus,steps,model,steps_per_s:v100\n1,0,1,20000,mine,1\n2,0,1,10000,mine,1\n")
    with closing(Journal(journal)) as opened:
        for beside, rate in (("", 10.0), ("mine", 8.0)):
            ProfileStore(opened.connection).record("mine", beside, "v100", "alice", rate, 1.0)
    given = ("--trace", str(path), "--cluster", "v100:1x1", "--policy", "fifo", "--share", "--json", "-")

    pairs = [json.loads(hadar(*given, *more)[1])["sharing"]["pairs"] for more in ((), ("--profiles", str(journal)))]

    assert pairs == [0, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--slow-down", "2"), "--slow-down or --profiles without --share"),
        (("--share", "--profiles", "/nowhere/journal.db"), "/nowhere/journal.db"),
        (("--share", "--slow-down", "0.5"), "accepted slow-down 0.5: must lie from 1 to 100"),
        (("--share", "--fork", "auto"), "share with forked jobs"),
        (("--share", "--mtbf", "5"), "share with faults"),
        (("--share", "often"), "often"),
    ],
)
def test_what_cannot_be_shared_is_said_in_one_line(hadar: Any, trace: str, given: tuple[str, ...], words: str) -> None:
    code, out, err = hadar("--trace", trace, "--cluster", "v100:1x2", *given)

    assert code in (1, 2) and words in err and "Traceback" not in err + out
