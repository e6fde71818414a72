"""``hadar simulate``: a trace on a virtual cluster under one policy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slurm_hadar.cli.common import Number, console, facts_table, policy_settings, printed, write_json, write_text
from slurm_hadar.config import load
from slurm_hadar.controller.journal import journal_copy
from slurm_hadar.controller.observe.graphs import network_of
from slurm_hadar.controller.words import plain
from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LATEST_S, MOST_PAUSE_S
from slurm_hadar.forks import OVERHEAD
from slurm_hadar.model import Fork, Kept, Mix, Pairing
from slurm_hadar.policies import registry
from slurm_hadar.simulator.history import gpu_types_of
from slurm_hadar.simulator.nodes import cluster_nodes
from slurm_hadar.simulator.options import DEFAULT_CLUSTER, SimOptions, granted
from slurm_hadar.simulator.outcome.result import SimResult
from slurm_hadar.simulator.run import bounds_of
from slurm_hadar.simulator.run import simulate as run_simulation
from slurm_hadar.simulator.throughputs import Rates, load_table
from slurm_hadar.simulator.traces import FORMATS, Trace, node_types, read_trace, table_csv
from slurm_hadar.simulator.virtual.faults import Faults, draw_faults, read_faults
from slurm_hadar.simulator.virtual.forked import Consolidation
from slurm_hadar.throughput.profiles import ProfileStore
from slurm_hadar.throughput.table import ReferenceTable
from slurm_hadar.units import lasting

__all__ = ["SceneOptions", "inputs", "scene", "scene_options", "simulate", "simulation_options"]

_LONGEST_S = 2 * 365 * 86400.0
_PAUSE = Number(0.0, MOST_PAUSE_S)
_FAILS_H, _REPAIRED_H = Number(0.1, 1e6), Number(0.01, 1e6)  # more often a node is never of use


def simulation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is simulated, apart from the policy: for all commands that simulate a trace."""
    for option in reversed(
        (
            click.option("--trace", "source", required=True,
                         help="Trace file, folder of PAI tables, philly:jobs=480,seed=0 or recurring:jobs=2000."),
            click.option("--format", "trace_format", type=click.Choice(FORMATS), help="Default: by content."),
            click.option("--node-types", "types", metavar="NODES=TYPE;...",
                         help="GPU types of nodes, where accounting does not record them: gpu[01-08]=v100."),
        )
    ):  # fmt: skip
        command = option(command)
    return scene_options(command)


def scene_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say on what and how a trace is simulated."""
    for option in reversed(
        (
            click.option("--cluster", help=f"type:nodesxGPUs,...; default: {DEFAULT_CLUSTER}, in a replay the site's."),
            click.option("--round", "round_s", type=Number(), help="Seconds; default 360, or the configuration's."),
            click.option("--seed", default=0, show_default=True, help="Of drawn traces and faults."),
            click.option("--throughputs", type=click.Path(path_type=Path), help="Our CSV or Gavel's JSON."),
            click.option("--model", type=click.Choice(["nodes", "gavel"]), default="nodes", show_default=True,
                         help="nodes: real node boundaries and restart costs; gavel: neither, as Gavel's own."),
            click.option("--mix", type=click.Choice([str(m) for m in Mix]), help="How all jobs take unlike GPUs."),
            click.option("--fork", type=click.Choice([str(f) for f in Fork]),
                         help="Fork every job whose gang fits on one node into a copy per node."),
            click.option("--share", is_flag=False, flag_value="beside",
                         type=click.Choice(["beside", "turns", "halves"]),
                         help="Two jobs of one GPU each may share one: beside each other (the default), or by turns, "
                              "by which more may where the trace has duties."),
            click.option("--slow-down", type=Number(), metavar="TIMES",
                         help="With --share: how many times as long every job may take beside another. Default: 2, or "
                              "jobs.slow_down of --config."),
            click.option("--profiles", "profiles_file", type=click.Path(path_type=Path), metavar="JOURNAL",
                         help="With --share: a controller's journal.db; what its jobs measured of pairs goes first."),
            click.option("--consolidation", "consolidation_share", type=Number(), metavar="SHARE",
                         help=f"Of its time that a copy loses to consolidations. Default: {OVERHEAD:g}."),
            click.option("--predictor", metavar="NAME",
                         help="Jobs do not state their steps: oracle, noisy:2, forest, forest:6, group_mean ..."),
            click.option("--history", metavar="TRACE",
                         help="An earlier trace that --predictor has learned from, such as recurring:...,part=0:4000."),
            click.option("--restart-cost", "restart_s", type=_PAUSE, help="Seconds of every restart, for all jobs."),
            click.option("--start-cost", "start_s", type=_PAUSE, default=0.0, help="Seconds that a first start takes."),
            click.option("--unmovable", type=Number(0.0, 1.0), default=0.0, metavar="SHARE",
                         help="Of the jobs that keep their places once they run, drawn by --seed."),
            click.option("--speed-error", type=Number(0.0, 10.0), default=0.0, metavar="SHARE",
                         help="By which speeds are off, drawn by --seed, until a job has run on a GPU type."),
            click.option("--elastic", type=click.Choice(["law", "table"]), default="law", show_default=True,
                         help="Speeds of an elastic job's other sizes: by the law of live jobs, or the table's."),
            click.option("--first-report", "report_s", type=_PAUSE, default=0.0,
                         help="Seconds from a start to the job's first report, an event as its end is one."),
            click.option("--asked-every", "asked_s", type=_PAUSE, default=0.0, metavar="SECONDS",
                         help="How often new jobs are asked for once a round may come. Default: seen at once."),
            click.option("--save", "save_s", type=_PAUSE, default=0.0, help="Seconds that a save takes."),
            click.option("--self-start", "self_start_s", type=_PAUSE, metavar="SECONDS",
                         help="Slurm starts jobs itself so long after they arrive, if GPUs are free. Default: never."),
            click.option("--phase", "phase_s", type=Number(-LATEST_S, LATEST_S), metavar="SECONDS",
                         help="When a round is due on the trace's clock. Default: at the first arrival."),
            click.option("--faults", "faults_file", type=click.Path(path_type=Path), help="CSV: node,down_s,up_s."),
            click.option("--mtbf", "mtbf_h", type=_FAILS_H, help="Hours between failures of a node, on average."),
            click.option("--mttr", "mttr_h", type=_REPAIRED_H, default=4.0, show_default=True,
                         help="Hours to its repair."),
            click.option("--measure", metavar="A:B", help="Measure jobs A to B-1 by arrival only; others go on."),
            click.option("--config", "config_file", type=click.Path(path_type=Path),
                         help="Take round length, event rounds, guard limits, usage half-life and network from here."),
            click.option("--bounds/--no-bounds", default=True, show_default=True, help="Solve for lower bounds too."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def inputs(
    source: str, trace_format: str | None, types: str | None, **given: Any
) -> tuple[Trace, ReferenceTable, SimOptions]:
    """What the options of :func:`simulation_options` stand for. Raises TraceError, ClusterError, ConfigError."""
    types_of = node_types(types or "")
    table, options = scene(SceneOptions(**given), types_of)
    gpus = gpus_of(options.cluster)
    trace = read_trace(source, table, trace_format, types_of, options.seed, gpus)
    return granted(trace, options.guard), table, options


@dataclass(frozen=True)
class SceneOptions:
    """The values of :func:`scene_options`, as typed."""

    cluster: str | None
    round_s: float | None
    seed: int
    throughputs: Path | None
    model: Literal["nodes", "gavel"]
    mix: str | None
    fork: str | None
    share: Literal["beside", "turns", "halves"] | None
    slow_down: float | None
    profiles_file: Path | None
    consolidation_share: float | None
    predictor: str | None
    history: str | None
    restart_s: float | None
    start_s: float
    unmovable: float
    speed_error: float
    elastic: Literal["law", "table"]
    report_s: float
    asked_s: float
    save_s: float
    self_start_s: float | None
    phase_s: float | None
    faults_file: Path | None
    mtbf_h: float | None
    mttr_h: float
    measure: str | None
    config_file: Path | None


def scene(given: SceneOptions, types_of: Mapping[str, str]) -> tuple[ReferenceTable, SimOptions]:
    """What the options of :func:`scene_options` stand for; ``types_of`` are GPU types of nodes, for a history out of
    accounting that records none. Raises TraceError, ClusterError, ConfigError."""
    cluster = DEFAULT_CLUSTER if given.cluster is None else given.cluster
    table = load_table(given.throughputs, gavel=given.model == "gavel")
    earlier = given.history and read_trace(given.history, table, None, types_of, given.seed, gpus_of(cluster))
    if given.share is None and (given.slow_down is not None or given.profiles_file is not None):
        raise click.UsageError("--slow-down or --profiles without --share: jobs share nothing")
    lost = given.consolidation_share
    options = SimOptions(
        cluster,
        given.model,
        360.0 if given.round_s is None else given.round_s,
        restart_s=given.restart_s,
        start_s=given.start_s,
        unmovable=given.unmovable,
        speed_error=given.speed_error,
        elastic=given.elastic,
        report_s=given.report_s,
        asked_s=given.asked_s,
        save_s=given.save_s,
        self_start_s=given.self_start_s,
        phase_s=given.phase_s,
        mix=Mix(given.mix) if given.mix else None,
        fork=Fork(given.fork) if given.fork else None,
        consolidation=Consolidation() if lost is None else Consolidation(lost),
        share=given.share,
        pairings=_measured_pairs(given.profiles_file),
        slow_down=2.0 if given.slow_down is None else given.slow_down,
        measure=_window(given.measure),
        seed=given.seed,
        predictor=given.predictor,
        history=earlier or None,
        faults=_faults(cluster, given),
    )
    if given.config_file is not None:
        config = load(given.config_file)
        site = config.controller
        options = replace(
            options,
            round_s=site.round_s if given.round_s is None else given.round_s,
            event_round_s=site.event_round_s,
            guard=config.guard,
            slow_down=config.jobs.slow_down if given.slow_down is None else given.slow_down,
            usage_half_life_s=config.fairness.half_life_h * 3600,
            network=network_of(config.network),
        )
    return table, options


def _measured_pairs(journal: Path | None) -> dict[Pairing, Kept]:
    """What jobs have measured of pairs under a controller. Raises StoreError."""
    if journal is None:
        return {}
    with journal_copy(journal) as copy:
        return ProfileStore(copy.connection).mean_pairings()


def gpus_of(cluster: str) -> int:
    """GPUs of all nodes of ``type:nodesxGPUs,...``. Raises ClusterError."""
    return sum(sum(node.gpus.values()) for node in cluster_nodes(cluster))


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise click.BadParameter(f"{text!r} must be A:B with whole numbers A < B", param_hint="--measure")
    return int(first), int(last)


def _faults(cluster: str, given: SceneOptions) -> Faults:
    file, mtbf_h = given.faults_file, given.mtbf_h
    if file is None and mtbf_h is None:
        return Faults()
    if file is not None and mtbf_h is not None:
        raise click.UsageError("--faults and --mtbf exclude each other")
    names = [n.name for n in cluster_nodes(cluster, by_node=given.model == "nodes")]
    if file is not None:
        return read_faults(file, names)
    return draw_faults(names, (mtbf_h or 0.0) * 3600, given.mttr_h * 3600, given.seed, _LONGEST_S)


@click.command()
@simulation_options
@click.option("--policy", default="hadar", show_default=True, help="Who decides.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A parameter of the policy.")
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
@click.option("--jobs-csv", "jobs_file", metavar="FILE", help="Write one line per job; - prints them.")
@click.option("--trace-csv", "trace_file", metavar="FILE", help="Write the trace in our own format; - prints it.")
def simulate(
    policy: str,
    settings: tuple[str, ...],
    json_file: str | None,
    jobs_file: str | None,
    trace_file: str | None,
    bounds: bool,
    **given: Any,
) -> int:
    """Simulate a trace on a virtual cluster, decided by the controller's own rounds.

    Without --config there are no limits on moves, so that policies are compared as they are. Exit code 1 if no job
    could be done.
    """
    on_terminal = printed(json=json_file, jobs_csv=jobs_file, trace_csv=trace_file)
    params = policy_settings(settings)
    chosen = registry.get(policy, **params)
    trace, table, options = inputs(**given)
    if trace_file is not None:
        rates = Rates(
            table, {*gpu_types_of(trace, table), *(t for n in cluster_nodes(options.cluster) for t in n.gpus)}
        )
        kept = replace(trace, jobs=tuple(map(rates.rated, trace.jobs)))
        write_text(trace_file, table_csv.write(kept))
    with _Progress(policy) as told:
        result = run_simulation(trace, chosen, options, table, params, told)
    if bounds and result.counted:
        try:
            result = replace(result, bounds=bounds_of(trace, options, table))
        except TraceError as error:
            click.echo(f"hadar: {error}", err=True)
    if jobs_file is not None:
        write_text(jobs_file, result.jobs_csv())
    if json_file is not None:
        write_json(json_file, result.summary())
    if not on_terminal:
        console().print(facts_table(_rows(result.summary())))
        for line in result.assumptions:
            click.echo(f"assumed: {line}")
    return _complain(result)


class _Progress:
    """A bar on stderr while a simulation runs, on a terminal only; entering gives what is to be told of progress."""

    def __init__(self, name: str) -> None:
        self._name = name
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"),
                   TimeElapsedColumn())  # fmt: skip
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True) if sys.stderr.isatty() else None

    def __enter__(self) -> Callable[[int, int], None] | None:
        if self._bar is None:
            return None
        bar = self._bar
        bar.start()
        task = bar.add_task(self._name, total=None)
        return lambda done, total: bar.update(task, completed=done, total=total)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _complain(result: SimResult) -> int:
    """Say on stderr what was not done; the exit code."""
    if not result.unfinished:
        return 0
    job, why = next(iter(result.unfinished.items()))
    more = f" (and {len(result.unfinished) - 1} more)" if len(result.unfinished) > 1 else ""
    nothing = "no job was done" if not result.counted else "not all jobs were done"
    click.echo(plain(f"hadar: {nothing}: job {job}{more}: {why}"), err=True)
    return 0 if result.counted else 1


def _rows(s: dict[str, Any]) -> list[tuple[str, str, str]]:
    params = ",".join(f"{k}={v}" for k, v in s["params"].items())
    rows = [
        ("policy", s["policy"], params),
        ("trace", s["trace"], f"{s['jobs']} jobs measured"),
        ("cluster", s["cluster"], f"model {s['model']}, rounds of {s['round_s']:g} s"),
        ("average JCT", lasting(s["avg_jct_s"]), _beside(s["avg_jct_s"], s["lower_bound_avg_jct_s"])),
        ("median JCT", lasting(s["p50_jct_s"]), f"95 %: {lasting(s['p95_jct_s'])}, longest: {lasting(s['max_jct_s'])}"),
        ("TTD (makespan)", lasting(s["ttd_s"]), _beside(s["ttd_s"], s["lower_bound_ttd_s"])),
        ("average queueing", lasting(s["avg_queueing_s"]), ""),
        ("finish-time fairness", _number(s["ftf_mean"]), f"worst {_number(s['ftf_max'])}"),
        ("GPU utilisation", _percent(s["gru"]), _each(s["utilisation"])),
        ("node utilisation", _percent(s["cru"]), ""),
        ("moves per job", _number(s["moves_per_job"]), f"restarts per job {_number(s['restarts_per_job'])}"),
        ("rounds", str(s["rounds"]), ""),
        (
            "decision",
            f"{1000 * s['decide_mean_s']:.2f} ms",
            f"longest {1000 * s['decide_max_s']:.1f} ms, in all {s['decide_total_s']:.2f} s of CPU",
        ),
    ]
    if "sharing" in s:
        shared = s["sharing"]
        crowded_h = shared.get("crowded_gpu_s", 0.0) / 3600
        more = f", {crowded_h:.1f} of them with more than two" if crowded_h else ""
        many = "two jobs or more" if crowded_h else "two jobs"
        hours = f"{shared['shared_gpu_s'] / 3600:.1f} GPU-hours with {many}{more}"
        rows.append(("shared", f"{shared['pairs']} times", hours))
    if s["unfinished"]:
        rows.append(("not done", str(len(s["unfinished"])), ""))
    return rows


def _beside(value: float | None, bound: float | None) -> str:
    if not value or not bound:
        return ""
    return f"{value / bound:.2f} times the lower bound of {lasting(bound)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _each(shares: dict[str, float | None]) -> str:
    return ", ".join(f"{t} {_percent(v)}" for t, v in shares.items())
