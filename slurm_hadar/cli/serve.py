"""``hadar serve``: models served within deadlines."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_hadar.cli.common import console, facts_table, write_json
from slurm_hadar.errors import ConfigError
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.registry import Name
from slurm_hadar.serving.simulation.result import ServeResult
from slurm_hadar.serving.simulation.run import ServeOptions
from slurm_hadar.serving.simulation.run import simulate as run_simulation
from slurm_hadar.serving.trace import read_trace, with_slo, write_trace

__all__ = ["serve"]

_TRACE = "CSV file, poisson:load=0.7,seconds=60,seed=0 or bursts:rate=25,factor=4."


@click.group()
def serve() -> None:
    """Models served within deadlines."""


@serve.command()
@click.option("--trace", "source", required=True, metavar="FILE|SPEC", help=_TRACE)
@click.option("--scheduler", "name", required=True, type=click.Choice([str(n) for n in Name]), help="Who decides.")
@click.option(
    "--slo", metavar="T", help="100ms after arrival, or 1.5xP99 of run times; default: the trace's deadline_s."
)
@click.option("--batch-law", "g", default=0.6, show_default=True, type=click.FloatRange(0.0, 1.0), metavar="G",
              help="A batch of k takes G + (1 - G) k times as long as its longest request.")  # fmt: skip
@click.option("--max-batch", "largest", default=16, show_default=True, type=click.IntRange(1, 1024), help="Requests.")
@click.option("--speeds", default="1", show_default=True, metavar="X,...", help="A worker of each speed.")
@click.option("--profiled", default=50, show_default=True, type=click.IntRange(0, 1000),
              help="Run times of each application known beforehand: those of its first requests.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
def simulate(
    source: str, name: str, slo: str | None, g: float, largest: int, speeds: str, profiled: int, json_file: str | None
) -> None:
    """Simulate a trace of requests.

    Columns: arrival_s, application, exec_s (alone, on a worker of speed 1), and optional deadline_s, on the clock of
    arrival_s.
    """
    trace = with_slo(read_trace(source), slo)
    options = ServeOptions(BatchLaw.linear(g, largest), _speeds(speeds), profiled)
    result = run_simulation(trace, Name(name), options)
    if json_file is not None:
        write_json(json_file, result.summary())
        if json_file == "-":
            return
    console().print(facts_table(_rows(result)))


@serve.command()
@click.argument("spec")
@click.option("--slo", metavar="T", help="Adds deadline_s: 100ms after arrival, or 1.5xP99.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the trace there; default: print it.")
def trace(spec: str, slo: str | None, out: Path | None) -> None:
    """Draw a trace for simulate, by a text such as poisson:load=0.7,seconds=60.

    Keys: rate or load, seconds, seed; of bursts factor, share, length; apps=NAME/TIME/WEIGHT+..., spread, drift,
    period.
    """
    requests = read_trace(spec)
    text = write_trace(requests if slo is None else with_slo(requests, slo))
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _speeds(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not 0 < len(found) <= 1024 or not all(1e-3 <= speed <= 1e3 for speed in found):
        raise ConfigError(f"--speeds {text!r} must be numbers from 0.001 to 1000, such as 1,0.5")
    return found


def _rows(result: ServeResult) -> list[tuple[str, str, str]]:
    summary = result.summary()
    found = [("finish rate", f"{summary['finish_rate']:.1%}", f"of {summary['requests']} requests, {result.scheduler}")]
    for name, of in summary["by_application"].items():
        waits = [of["latency_p50_s"], of["latency_p99_s"]]
        told = "none answered" if waits[0] is None else f"latency {waits[0]:.3f} s (median), {waits[1]:.3f} s (99 %)"
        found.append((f"  {name}", f"{of['finish_rate']:.1%}", f"of {of['requests']}; {told}"))
    return [
        *found,
        ("given up", str(summary["rejected"]), ""),
        ("mean batch", f"{summary['mean_batch']:.2f}", ""),
        ("decision", f"{summary['decide_us_p99']:.0f} us", "of CPU (99 %)"),
    ]
