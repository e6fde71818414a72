"""docs/results/serving.md and its pictures, from docs/results/serving.json."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slurm_hadar.pages.plots import Look, drawing
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.registry import Name
from slurm_hadar.serving.simulation.result import ServeResult
from slurm_hadar.serving.simulation.run import ServeOptions, simulate
from slurm_hadar.serving.trace import drawn, with_slo

__all__ = ["write"]

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
#: of the reconstruction's own small simulation, where EDF and peers were simpler
FORMER = {
    "0.7 Poisson": (0.94, 0.95, 0.98, 1.0, 1.0),
    "0.7 bursts": (0.91, 0.92, 0.95, 0.97, 0.99),
    "1.1 Poisson": (0.90, 0.92, 0.95, 0.98, 1.0),
}
_SEEN = "bursts:load=0.7,seconds=150,seed=100"

INTRO = """# Serving, measured

Made by `python -m benchmarks.serving finish`, `plain`, `kinds`, `bound`, `drift`, `decide`, `server`, `peers`,
`beside` and `faults`, then `page`,
from [serving.json](serving.json). What the scheduler does, and what of it is the paper's:
[../serving.md](../serving.md).

Down to the drift all is simulation: one worker, a batch of k takes (0.6 + 0.4 k) times as long as its longest
request, at most 16 requests. Load is the arrival rate times the mean run time: without batches 1 would be the most.
Each scheduler is told 50 run times of each application beforehand. A finish rate is the share of all requests
answered within their deadlines; means over seeds {first} to {last}, on which nothing was chosen.

The peers are simplified forms of those systems' rules, and not the systems. EDF and the largest feasible batch are
told the applications and give up early what cannot be met, as Orloj does; without that they are far worse.

The row "upper bound" is what nobody could exceed who knew all requests and run times beforehand: a relaxation that
gives up batches for the least that each request takes of the worker in one (`benchmarks/serving/bound.py` has the
reasons, a test compares it with trying all schedules). What can be reached without knowing the future lies below it.

## Two applications

10 ms and 100 ms (5 % spread), 80:20. Bursts: four times the rate for a tenth of the time, 1 s on average. Columns:
the SLO in units of the 99th percentile of run times.

![finish rate against SLO](serving_finish.png)

"""
FORMER_NOTE = """
The row "reconstruction alone" has our reconstruction of Orloj's rules without what we added to it
(`benchmarks/serving/plain.py`), on the same requests.
The row "reconstruction, before" is from the small simulation in which the reconstruction was worked out, with fewer
requests and bursts of a shape that is not recorded; it is what we set out to reach. {missed}
"""
KINDS_INTRO = """
## Static models, heavy tails, no tags

One application of 20 ms: static (2 % spread), or log-normal run times with a standard deviation of 1.1 means. And the
two applications under one tag.

"""
DRIFT_INTRO = """
## Drift

Two applications of 100 ms and 1 s, 80:20, for 8 hours, SLO 1.5 x P99, load 0.7 on average,
while all run times swing by half up and down
once in two hours. The oracle is told the true distributions every 20 s.

"""
DECIDE_INTRO = """
## Decisions

CPU time of one decision with 1,000 requests queued, of three applications with log-normal run times, with nothing else
on the machine's two cores. The same decisions are made five times: the least that each took is nearest to what it takes
on a core of its own. The heap is work that is always the same, in the same run. The goal
was 100 us at 99 %.

"""
SERVER_INTRO = """
## The server itself

`python -m benchmarks.serving server`: a model that does nothing, on one worker, against the same web server that
answers the same JSON itself; client, server and worker on two cores with nothing else to do. The goals were less
than 1 ms above no model, and 2,000 requests/s.

"""
PEERS_INTRO = """
## Against Ray Serve and LitServe

`python -m benchmarks.serving peers`: the same model and open-loop load, one worker with one thread each. The peers are
as installed from PyPI, with their own batching: a sweep of five pairs of batch size and waiting time, at the load
where without batches less than 0.8 is in time. They know of neither deadlines nor applications. At the load where the
best of these is near 0.6, and where little comes (load 0.1; `exits` 0.02), peer and ours are then asked in turn, three
times. `texts` is a transformer on texts of 8 to 32 and 300 to 400 words, `exits` a network that stops at the first
classifier that is sure, both computing on a CPU's core; `slept` takes 5 and 50 ms and no CPU, as one on a GPU, in
batches (0.6 + 0.4 k) times as long. 80:20 each; deadlines are three times the longest run time. The goals were a finish
rate of 1.3 times theirs where that is 0.6, and 1.1 times their median latency where little comes.

Server, worker and client had two cores, and nothing else was on them (`--seconds 8`). A request of `exits` takes a
millisecond or two: there the servers themselves are compared more than their batching.

"""
BESIDE_INTRO = """
## Beside a training

`python -m benchmarks.serving beside`: server and training under `hadar share run --policy priority`, the server's class
with 9 times the weight. The GPU is pretended (its work is slept): iterations of 20 ms, requests of 5 and 50 ms, 80:20,
at a load of 0.3, deadline 150 ms. Finish rates of the server, iterations per second of the training. The goals were
2 points less at most, and 60 % of its own speed. The machine's two cores had nothing else to do.

On a real GPU (`--gpu`, an NVIDIA H100): matrix products that take as long, one run of 8 s each.

"""
FAULTS_INTRO = """
## Faults

`python -m benchmarks.serving faults`: workers are killed and stopped (`--hang 2s`), clients vanish, dawdle, flood and
send what is no request, while an honest one sends on. It must get one answer to each request (a result, or 429, 503,
504), and the server must be empty and ready afterwards. Two workers in such trouble answer little in time; that is not
the point.

"""


def write(found: Mapping[str, Any]) -> None:
    """The page, and the pictures that it shows."""
    finish = found["finish"]
    text = INTRO.format(first=finish["first"], last=finish["first"] + finish["seeds"] - 1)
    bounds, plain = found["bound"]["rates"], found["plain"]["rates"]
    assert all(found[of][key] == finish[key] for of in ("bound", "plain") for key in ("first", "seeds")), "of others"
    for load, rates in finish["rates"].items():
        text += f"\n### Load {load}\n\n" + _table(rates, bounds[load], plain[load], FORMER[load])
    text += FORMER_NOTE.format(missed=_missed(finish["rates"], bounds, plain)) + _gains(finish["rates"], bounds)
    text += "\n![latencies](serving_latency.png)\n\n![batches](serving_batches.png)\n"
    if "kinds" in found:
        text += KINDS_INTRO
        for kind, rates in found["kinds"]["rates"].items():
            text += f"\n### {kind[0].upper()}{kind[1:]}\n\n" + _table(rates, bounds[kind])
    if "drift" in found:
        text += DRIFT_INTRO + "| | finish rate |\n| --- | --- |\n"
        text += "".join(f"| {name} | {statistics.fmean(rates):.4f} |\n" for name, rates in found["drift"].items())
    text += DECIDE_INTRO + "| | us |\n| --- | --- |\n"
    text += "".join(f"| {name} | {us:.0f} |\n" for name, us in found["decide"].items())
    if "server" in found:
        kinds = list(found["server"])
        text += SERVER_INTRO + "| | " + " | ".join(kinds) + " |\n| --- |" + " --- |" * len(kinds) + "\n"
        for what in found["server"][kinds[0]]:
            text += f"| {what} | " + " | ".join(f"{found['server'][kind][what]:.3g}" for kind in kinds) + " |\n"
    if "peers" in found:
        text += PEERS_INTRO + _peers(found["peers"])
    if "beside" in found:
        text += BESIDE_INTRO + _beside(found["beside"], found.get("beside on a GPU", {}))
    if "faults" in found:
        kept = found["faults"]
        done = ", ".join(f"{count} x {name.replace('_', ' ')}" for name, count in sorted(kept["faults"].items()))
        answers = ", ".join(f"{count} x {status}" for status, count in sorted(kept["statuses"].items()))
        wrong = "; ".join(kept["wrong"]) or "nothing"
        text += FAULTS_INTRO + f"Faults: {done}. Answers to {kept['requests']} requests: {answers}. "
        text += f"The server grew by {kept['grown_mb']} MB. Found wrong: {wrong}.\n"
    (RESULTS / "serving.md").write_text(text, encoding="utf-8")
    (RESULTS / "serving_finish.png").write_bytes(_finish_picture(finish["rates"]))
    results = {n: simulate(with_slo(drawn(_SEEN), "2xP99"), n, ServeOptions(BatchLaw.linear(0.6, 16))) for n in Name}
    (RESULTS / "serving_latency.png").write_bytes(_latency_picture(results))
    (RESULTS / "serving_batches.png").write_bytes(_batches_picture(results))


def _beside(pretended: Mapping[str, float], real: Mapping[str, float]) -> str:
    rows = [f"| {what} | {rate:.3f} | {f'{real[what]:.3f}' if real else ''} |\n" for what, rate in pretended.items()]
    return "".join(["| | pretended | real |\n| --- | --- | --- |\n", *rows])


def _table(
    rates: Mapping[str, Mapping[str, list[float]]],
    bounds: Mapping[str, list[float]],
    plain: Mapping[str, list[float]] | None = None,
    former: tuple[float, ...] = (),
) -> str:
    slos = list(next(iter(rates.values())))
    text = "| scheduler | " + " | ".join(f"{s} x" for s in slos) + " |\n| --- |" + " --- |" * len(slos) + "\n"
    best = {s: max(statistics.fmean(of[s]) for of in rates.values()) for s in slos}
    for name, of in ((str(n), rates[str(n)]) for n in Name):
        cells = [statistics.fmean(of[s]) for s in slos]
        marked = (f"**{c:.3f}**" if c >= best[s] - 1e-9 else f"{c:.3f}" for c, s in zip(cells, slos, strict=True))
        text += f"| `{name}` | " + " | ".join(marked) + " |\n"
    for row, values in (("reconstruction alone", plain), ("upper bound", bounds)):
        if values:
            text += f"| {row} | " + " | ".join(f"{statistics.fmean(values[s]):.3f}" for s in slos) + " |\n"
    if former:
        text += "| reconstruction, before | " + " | ".join(f"{c:.2f}" for c in former) + " |\n"
    return text


def _peers(found: Mapping[str, Any]) -> str:
    text = "| model | peer | max batch, wait | load | finish rate | ours | ours over theirs "
    text += "| median where little comes, ms | ours | ratio |\n"
    text += "| --- |" + " --- |" * 9 + "\n"
    for model, of in found.items():
        for peer, r in of.get("ratios", {}).items():
            configured = of["configured"][peer]
            pair = f"{configured['max_batch_size']}, {1e3 * configured['wait_s']:g} ms"
            text += f"| `{model}` | {peer} | {pair} | {r['load']:g} | {r['finish rate of theirs']:.2f} "
            text += f"| {r['finish rate of ours']:.2f} | {r['finish rate, ours over theirs']:.2f} "
            text += f"| {r['calm median of theirs, ms']:.1f} | {r['calm median of ours, ms']:.1f} "
            text += f"| {r['calm median, ours over theirs']:.2f} |\n"
    return text


def _missed(rates: Mapping[str, Any], bounds: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    found = []
    for load, of in rates.items():
        for goal, (slo, seeds) in zip(FORMER[load], of["orloj"].items(), strict=True):
            mean = statistics.fmean(seeds)
            if round(mean, 2) < goal:
                most, alone = (statistics.fmean(of[load][slo]) for of in (bounds, plain))
                found.append(
                    f"{load} at {slo} x ({mean:.3f} for {goal:.2f}; of these requests the reconstruction alone has "
                    f"{alone:.3f}, and nobody\ncan have more than {most:.3f})"
                )
    return f"Missed:\n{'; '.join(found)}." if found else "It is reached everywhere, rounded to its two digits."


def _gains(rates: Mapping[str, Any], bounds: Mapping[str, Any]) -> str:
    text = (
        "\nOrloj against the three systems' rules: by how much its finish rate is higher, and which part of their gap "
        "to 1\nit closes, where the upper bound is the most that could be closed.\n\n"
        "| load | peer | SLO | higher by | gap closed | at most |\n| --- | --- | --- | --- | --- | --- |\n"
    )
    for load, of in rates.items():
        for peer in ("clockwork", "nexus", "clipper"):
            for slo in ("1.2", "5.0"):
                ours, theirs = (statistics.fmean(of[n][slo]) for n in ("orloj", peer))
                closed = (ours - theirs) / max(1.0 - theirs, 1e-9)
                most = (statistics.fmean(bounds[load][slo]) - theirs) / max(1.0 - theirs, 1e-9)
                text += f"| {load} | `{peer}` | {slo} x | {ours / theirs - 1:.0%} | {closed:.0%} | {most:.0%} |\n"
    edf = min(
        statistics.fmean(of["orloj"][slo]) - statistics.fmean(of["edf"][slo])
        for of in rates.values()
        for slo in of["edf"]
    )
    return text + f"\nAgainst EDF the least difference of all cells is {100 * edf:+.1f} points.\n"


def _finish_picture(rates: Mapping[str, Any]) -> bytes:
    look = Look.of(False)
    with drawing(look, 1, len(rates), 11.0, 3.6) as (_, axes, out):
        for axis, (load, of) in zip(np.ravel(axes), rates.items(), strict=True):
            for place, (name, cells) in enumerate((str(n), of[str(n)]) for n in Name):
                slos = [float(s) for s in cells]
                means = [statistics.fmean(c) for c in cells.values()]
                axis.plot(slos, means, color=look.colour(place), marker="o", ms=3, label=name)
            axis.set_title(f"load {load}", fontsize=9)
            axis.set_xlabel("SLO / P99 of run times")
            axis.set_ylim(0, 1.02)
        np.ravel(axes)[0].set_ylabel("finish rate")
        np.ravel(axes)[-1].legend(fontsize=7)
    return out.getvalue()


def _latency_picture(results: Mapping[Name, ServeResult]) -> bytes:
    look = Look.of(False)
    with drawing(look, 1, 1, 7.0, 3.6) as (_, axes, out):
        axis = np.ravel(axes)[0]
        for place, (name, result) in enumerate(results.items()):
            waits = np.sort(result.ends_s - np.array([r.arrival_s for r in result.trace]))
            share = np.arange(1, len(waits) + 1) / len(waits)  # those given up stand at the end, and are not drawn
            axis.plot(waits * 1e3, share, color=look.colour(place), label=str(name))
        slo_ms = (results[Name.ORLOJ].trace[0].deadline_s - results[Name.ORLOJ].trace[0].arrival_s) * 1e3
        axis.axvline(slo_ms, color=look.faint)
        axis.set_xlabel(f"latency in ms, 0.7 bursts; deadline {slo_ms:.0f} ms")
        axis.set_ylabel("share of all requests")
        axis.set_xlim(0, 2 * slo_ms)
        axis.legend(fontsize=7)
    return out.getvalue()


def _batches_picture(results: Mapping[Name, ServeResult]) -> bytes:
    """The same two seconds within a burst: a bar for each batch, as high as it is large."""
    look = Look.of(False)
    trace = results[Name.ORLOJ].trace
    arrivals = np.array([r.arrival_s for r in trace])
    begin_s = max(range(1, 140), key=lambda s: int(((arrivals >= s) & (arrivals < s + 2)).sum()))
    shown = (Name.ORLOJ, Name.EDF, Name.CLOCKWORK)
    with drawing(look, len(shown), 1, 9.0, 4.5) as (_, axes, out):
        for axis, name in zip(np.ravel(axes), shown, strict=True):
            for batch in results[name].batches:
                if begin_s - 0.2 <= batch.start_s <= begin_s + 2:
                    long = any(trace[n].application == "long" for n in batch.requests)
                    width_ms = (batch.end_s - batch.start_s) * 1e3
                    at_ms = (batch.start_s - begin_s) * 1e3
                    axis.bar(at_ms, len(batch.requests), width_ms, align="edge", color=look.colour(1 if long else 0),
                             edgecolor=look.paper, linewidth=0.5)  # fmt: skip
            axis.set_xlim(0, 2000)
            axis.set_ylim(0, 16.5)
            axis.set_ylabel(f"{name}\nbatch")
        np.ravel(axes)[-1].set_xlabel("ms in a burst; blue: short requests only, orange: a long one among them")
    return out.getvalue()
