"""``hadar serve``: models served within deadlines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from slurm_hadar.cli.common import Number, console, facts_table, fitting_table, write_json, write_text
from slurm_hadar.controller.words import plain
from slurm_hadar.errors import ConfigError, ServingError
from slurm_hadar.joblog import say
from slurm_hadar.listening import is_loopback, read_token
from slurm_hadar.serving.client import ServingClient
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.registry import Name
from slurm_hadar.serving.simulation.result import ServeResult
from slurm_hadar.serving.simulation.run import ServeOptions
from slurm_hadar.serving.simulation.run import simulate as run_simulation
from slurm_hadar.serving.simulation.scaling import Bounds
from slurm_hadar.serving.spans import seconds
from slurm_hadar.serving.trace import intended_of, read_trace, with_slo, write_trace
from slurm_hadar.sharing.sizes import size_bytes
from slurm_hadar.units import lasting

__all__ = ["serve"]

_TRACE = "CSV file, poisson:load=0.7,seconds=60,seed=0 or bursts:rate=25,factor=4."


@click.group()
def serve() -> None:
    """Models served within deadlines."""


@serve.command()
@click.argument("source", metavar="FILE.py:build")
@click.option("--workers", default="1", show_default=True, metavar="N|MIN-MAX",
              help="Processes with the models; 1-4: as many as reach the goal.")  # fmt: skip
@click.option("--goal", default=0.95, show_default=True, type=Number(0.0, 1.0), metavar="RATE",
              help="Finish rate for which workers are added, of MIN-MAX.")  # fmt: skip
@click.option("--slo", default="100ms", show_default=True, metavar="T", help="Deadline of requests that name none.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; others need --token-file.")
@click.option("--port", default=8642, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Only who sends the token in this file is served.",
)
@click.option("--tls-cert", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="PEM; with --tls-key.")
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="PEM.")
@click.option("--scheduler", "name", default="orloj", show_default=True, type=click.Choice([str(n) for n in Name]),
              help="Who decides.")  # fmt: skip
@click.option("--max-batch", "largest", default=16, show_default=True, type=click.IntRange(1, 1024), help="Requests.")
@click.option("--max-queue", "queue", default=1000, show_default=True, type=click.IntRange(1, 1_000_000),
              help="Requests that may wait; further ones are refused (429).")  # fmt: skip
@click.option("--max-body", default="16MiB", show_default=True, metavar="BYTES", help="Of one request.")
@click.option(
    "--drain", default="30s", show_default=True, metavar="T", help="At SIGTERM: how long accepted requests may take."
)
@click.option("--hang", default="60s", show_default=True, metavar="T",
              help="A batch that takes longer has its worker killed and replaced.")  # fmt: skip
def run(
    source: str, workers: str, goal: float, slo: str, host: str, port: int, token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None, name: str, largest: int, queue: int, max_body: str, drain: str, hang: str,
) -> None:  # fmt: skip
    """Serve the models that a function of a Python file builds, by the Open Inference Protocol."""
    from slurm_hadar.serving.server.dispatcher import DispatcherOptions
    from slurm_hadar.serving.server.run import ServerOptions, run_server

    token = None if token_file is None else read_token(token_file)
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together")
    if token is None and not is_loopback(host):
        raise ConfigError(f"--host {host} can be reached from other hosts: give --token-file")
    dispatcher = DispatcherOptions(
        source,
        Bounds.read(workers, goal),
        seconds(slo, "--slo"),
        Name(name),
        largest,
        queue,
        hang_s=seconds(hang, "--hang"),
    )
    options = ServerOptions(
        dispatcher, host, port, token, tls_cert, tls_key, size_bytes(max_body), seconds(drain, "--drain")
    )
    run_server(options, say)


_url = click.option("--url", default="http://127.0.0.1:8642", show_default=True, help="Of the server.")
_token = click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), help="That the server needs.")
_trusted = click.option("--ca", "certificates", type=click.Path(dir_okay=False, exists=True),
                        help="Certificates to trust, for https; default: the system's.")  # fmt: skip


@serve.command()
@_url
@_token
@_trusted
@click.option("--watch", is_flag=True, help="Once a second, until Ctrl-C.")
@click.option("--json", "json_file", metavar="FILE", help="Write it as JSON; - prints it.")
def status(url: str, token_file: Path | None, certificates: str | None, watch: bool, json_file: str | None) -> None:
    """Queue, workers and applications of a server."""
    with _client(url, token_file, certificates) as client:
        while True:
            told = client.status()
            if json_file is not None:
                write_json(json_file, told)
            else:
                if watch:
                    console().clear()
                _show_status(told)
            if not watch:
                return
            time.sleep(1.0)


def _client(url: str, token_file: Path | None, certificates: str | None) -> ServingClient:
    return ServingClient(url, None if token_file is None else read_token(token_file), certificates)


def _show_status(told: dict[str, Any]) -> None:
    from rich.table import Table

    state = "ending" if told["draining"] else f"up {lasting(told['up_s'])}"
    click.echo(f"{told['scheduler']}, {state}, {told['queued']} of at most {told['queued_most']} requests wait")
    workers = Table("worker", "node", "process", "state", "batch", "speed", box=None)
    for w in told["workers"]:
        speed = "-" if w["speed"] is None else f"{w['speed']:.2f}"
        workers.add_row(w["name"], w["node"] or "here", str(w["pid"]), w["state"], str(w["batch"]), speed)
    console().print(workers)
    scaling = told["scaling"]
    if scaling["least"] < scaling["most"]:
        rates = ", ".join(f"{e['finish_rate']:.1%} with {e['workers']}" for e in scaling["expected"])
        span = f"{scaling['least']} to {scaling['most']}"
        room = f", room for {scaling['here']}" if scaling["here"] < scaling["most"] else ""
        word = "" if scaling["told"] is None else f", the controller is told {scaling['told']}"
        click.echo(
            f"{scaling['wanted']} workers wanted, of {span}{room}{word}; expected in time: "
            f"{rates or 'nobody came of late'} (goal {scaling['goal']:.1%})"
        )
    rows = [_facts(of) for of in told["applications"]]
    console().print(fitting_table(rows, _TITLES, _DROPPED, console().width))


_TITLES = ("model", "application", "requests", "in time", "late", "refused", "gone", "median", "99 %")
#: What a narrow terminal has no room for, in this order.
_DROPPED = ("gone", "median", "refused", "late", "99 %", "requests")


def _facts(of: dict[str, Any]) -> dict[str, str]:
    waits = ("-" if of[k] is None else f"{of[k]:.1f} ms" for k in ("latency_p50_ms", "latency_p99_ms"))
    counts = (str(of[k]) for k in ("late", "refused", "abandoned"))
    name, model = plain(of["application"] or "-"), plain(of["model"])
    words = (model, name, str(of["requests"]), f"{of['finish_rate']:.1%}", *counts, *waits)
    return dict(zip(_TITLES, words, strict=True))


@serve.command()
@_url
@_token
@_trusted
@click.option("--trace", "source", required=True, metavar="FILE|SPEC",
              help="CSV file, poisson:rate=50,seconds=60,seed=0 or bursts:rate=50.")  # fmt: skip
@click.option("--model", help="Which one; needed where the server has several.")
@click.option("--slo", default="100ms", show_default=True, metavar="T", help="Deadline; of a file: where it has none.")
@click.option("--mix", metavar="APP=WEIGHT,...", help="Of drawn traces; default: all the model's applications alike.")
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
def load(
    url: str, token_file: Path | None, certificates: str | None, source: str, model: str | None, slo: str,
    mix: str | None, json_file: str | None,
) -> None:  # fmt: skip
    """Send requests to a server at the trace's times, whatever it answers, and say how many were answered in time.

    The inputs are the model's own examples.
    """
    from slurm_hadar.serving.load import run_load

    with _client(url, token_file, certificates) as client:
        models = client.status()["models"]
        if not models:
            raise ServingError(f"{url}: no worker is ready yet")
        if model is None and len(models) != 1:
            raise ConfigError(f"the server has the models {', '.join(models)}: name one by --model")
        name = model or models[0]
        examples: dict[str, list[dict[str, Any]]] = {}
        for example in client.examples(name):
            examples.setdefault(example["parameters"]["application"], []).append(example)
    token = None if token_file is None else read_token(token_file)
    intended = intended_of(source, seconds(slo, "--slo"), _mix(mix, list(examples)), _assume)
    told = run_load(url, name, intended, examples, token, certificates).summary()
    if json_file is not None:
        write_json(json_file, told)
        if json_file == "-":
            return
    console().print(facts_table(_load_rows(told)))


def _assume(line: str) -> None:
    click.echo(f"assumed: {line}", err=True)


def _mix(text: str | None, applications: list[str]) -> dict[str, float]:
    if text is None:
        return dict.fromkeys(applications, 1.0)
    found = {}
    for part in text.split(","):
        name, equals, weight = part.rpartition("=")
        try:
            found[name] = float(weight)
        except ValueError:
            found[name] = -1.0
        if not equals or not 0 < found[name] <= 1e9:
            raise ConfigError(f"--mix {part!r} must read APP=WEIGHT, a number above 0")
    return found


def _load_rows(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    def waits(of: dict[str, Any]) -> str:
        if of["latency_p50_ms"] is None:
            return "none answered"
        return f"latency {of['latency_p50_ms']:.1f} ms (median), {of['latency_p99_ms']:.1f} ms (99 %)"

    found = [("finish rate", f"{told['finish_rate']:.1%}", f"of {told['requests']} requests; {waits(told)}")]
    for name, of in told["by_application"].items():
        found.append((f"  {name}", f"{of['finish_rate']:.1%}", f"of {of['requests']}; {waits(of)}"))
    return [
        *found,
        ("refused", str(told["refused"]), ""),
        ("unanswered", str(told["unanswered"]), ""),
        ("goodput", f"{told['goodput_per_s']:.1f}/s", "answered in time"),
        ("sent late by", f"{told['sending_lag_ms_p99']:.1f} ms", "99 %: the load's own delay, counted in latencies"),
    ]


@serve.command()
@click.option("--trace", "source", required=True, metavar="FILE|SPEC", help=_TRACE)
@click.option("--scheduler", "name", required=True, type=click.Choice([str(n) for n in Name]), help="Who decides.")
@click.option(
    "--slo", metavar="T", help="100ms after arrival, or 1.5xP99 of run times; default: the trace's deadline_s."
)
@click.option("--batch-law", "g", default=0.6, show_default=True, type=Number(0.0, 1.0), metavar="G",
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

    Columns: arrival_s, application, exec_s (alone, on a worker of speed 1), and optional deadline_s: a time on the
    clock of arrival_s; where one lies before its arrival_s, all are taken as seconds after it, which is said, unless
    most lie after theirs and become later with them: then the one is refused as a mistake.
    """
    trace = read_trace(source, _assume, timed=slo is None)
    if slo is not None:
        trace = with_slo(trace, slo)
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
@click.option("--out", default="-", metavar="FILE", help="Write the trace there; default: print it.")
def trace(spec: str, slo: str | None, out: str) -> None:
    """Draw a trace for simulate, by a text such as poisson:load=0.7,seconds=60.

    Keys: rate or load, seconds, seed; of bursts factor, share, length; apps=NAME/TIME/WEIGHT+..., spread, drift,
    period.
    """
    requests = read_trace(spec)
    write_text(out, write_trace(requests if slo is None else with_slo(requests, slo)))


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
