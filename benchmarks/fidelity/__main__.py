"""The same trace on a private, real Slurm cluster and in the simulator.

    python -m benchmarks.fidelity [--policy hadar --policy fifo] [--jobs 24] [--seed 0] [--out fidelity-results]
    python -m benchmarks.fidelity --policy hadar --demo

Jobs of 1, 2 and 4 GPUs and of three families arrive over some minutes on a cluster of three GPU types, steered by
``hadar run`` in mode act. The same trace, with the same speeds and configuration and the measured costs of starts and
moves, then goes through the simulator. With ``--demo`` it is the queue of ``make demo``. Exit code 1 if the mean error
of job completion times exceeds ``--bound``.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.fidelity.compare import Costs, figures, trace_as_run, virtual
from benchmarks.fidelity.picture import draw as picture
from benchmarks.fidelity.real import run_for_real
from benchmarks.fidelity.scene import FASTEST_STEPS_PER_S, NODES, Scene, drawn, of_demo
from slurm_hadar.cli.main import run as run_command
from slurm_hadar.controller.cluster import asked_every_s
from slurm_hadar.simulator.traces import table_csv as trace_csv

console = Console()


@click.command()
@click.option("--policy", "policies", multiple=True, default=("hadar", "fifo"), show_default=True)
@click.option("--jobs", default=24, show_default=True)
@click.option("--over", "over_s", default=240.0, show_default=True, help="Seconds in which the jobs arrive.")
@click.option("--seed", default=0, show_default=True, help="Of the trace.")
@click.option("--round", "round_s", default=10.0, show_default=True, help="Seconds.")
@click.option("--event-round", "event_round_s", default=0.0, show_default=True, help="Seconds; 0 = fixed rounds.")
@click.option("--min-run", "min_run_s", default=8.0, show_default=True, help="Seconds.")
@click.option("--lease", "lease_s", default=0, show_default=True,
              help="Seconds that Slurm leaves new jobs to the controller (LEASE_S in job_submit.lua).")  # fmt: skip
@click.option("--demo", is_flag=True, help="The demo's jobs, nodes and settings, whatever the options above say.")
@click.option("--bound", default=0.10, show_default=True, help="Largest mean error that passes.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("fidelity-results"), show_default=True)
def main(
    policies: tuple[str, ...], jobs: int, over_s: float, seed: int, round_s: float, event_round_s: float,
    min_run_s: float, lease_s: int, demo: bool, bound: float, out: Path,
) -> None:  # fmt: skip
    """Run a trace on a private Slurm and in the simulator, and compare the job completion times."""
    out = out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    settings = round_s, event_round_s, min_run_s, lease_s
    scene = of_demo() if demo else Scene(drawn(jobs, over_s, seed), NODES, FASTEST_STEPS_PER_S, *settings)
    config = out / "config.toml"
    config.write_text(scene.config_toml)
    found = []
    for policy in policies:
        console.rule(f"{len(scene.trace.jobs)} jobs under {policy}")
        run = run_for_real(scene, policy, config, out / policy, longest_s=over_s + 900)
        (out / policy / "run.json").write_text(json.dumps(asdict(run), indent=1) + "\n")
        as_run, costs = trace_as_run(scene.trace, run), Costs.measured(run, scene.restart_s, scene.lease_s)
        (out / policy / "trace.csv").write_text(trace_csv.write(as_run))
        one = figures(run, virtual(as_run, policy, scene, config, costs), costs)
        one["command"] = _command(out, policy, scene, costs)
        found.append(one)
        console.print(_table(one))
        (out / "fidelity.json").write_text(json.dumps(found, indent=1) + "\n")
    picture(found, out / "fidelity.png")
    console.rule("result")
    for one in found:
        console.print(_words(one), highlight=False)
    console.print(f"Picture: {out / 'fidelity.png'}   data: {out / 'fidelity.json'}")
    sys.exit(1 if any(one["mean_error"] > bound for one in found) else 0)


def _command(out: Path, policy: str, scene: Scene, costs: Costs) -> str:
    """The simulated side alone, from the files that are left."""
    return shlex.join([
        "hadar", "simulate", "--trace", str(out / policy / "trace.csv"), "--policy", policy, "--cluster", scene.nodes,
        "--config", str(out / "config.toml"),
        f"--restart-cost={costs.restart_s:.2f}", f"--start-cost={costs.start_s:.2f}",
        f"--first-report={costs.report_s:.2f}", f"--self-start={costs.self_start_s:.2f}",
        f"--phase={costs.phase_s:.2f}", f"--asked-every={asked_every_s(scene.event_round_s):g}",
    ])  # fmt: skip


def _table(one: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("job", "model", "GPUs", "arrival", "real JCT", "simulated", "error", "moves", "simulated"):
        table.add_column(title, justify="left" if title in ("job", "model") else "right")
    for j in one["per_job"]:
        table.add_row(
            j["job"], j["model"], str(j["gpus"]), f"{j['arrival_s']:.1f} s", f"{j['real_jct_s']:.1f} s",
            f"{j['sim_jct_s']:.1f} s", f"{100 * j['error']:+.1f} %", str(j["real_moves"]), str(j["sim_moves"]),
        )  # fmt: skip
    return table


def _words(one: dict[str, Any]) -> str:
    def share(name: str) -> str:
        return f"{100 * one[name]:+.1f} %".removeprefix("+" if name in ("mean_error", "median_error") else "")

    def both(name: str, form: str = ".0f") -> str:
        return f"{one['real_' + name]:{form}} / {one['sim_' + name]:{form}}"

    costs = one["costs"]
    return (
        f"{one['policy']}: mean error {share('mean_error')} (median {share('median_error')}, signed "
        f"{share('mean_signed_error')}, worst {share('worst_error')} of job {one['worst_job']})\n"
        f"  real / simulated: average JCT {both('avg_jct_s', '.1f')} s, TTD {both('ttd_s', '.1f')} s, moves "
        f"{both('moves')}, rounds {both('rounds')}\n"
        f"  measured: Slurm starts a job after {costs['self_start_s']:.2f} s, a first start costs "
        f"{costs['start_s']:.2f} s, a move {costs['restart_s']:.2f} s, the first report {costs['report_s']:.2f} s\n"
        f"  again: {one['command']}"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit takes the cluster down, a kill would not
    run_command(main, "fidelity")
