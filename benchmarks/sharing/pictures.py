"""The pictures of docs/results/sharing.md: a real broker and processes on an emulated GPU, what benchmarks.sharing.gpu
has seen of a real one, and a simulated trace.

python -m benchmarks.sharing.pictures [--seconds 20]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.sharing.live import CAPACITY, Training, turns_of
from slurm_hadar.pages.plots import Look, drawing, jct_cdf
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.simulation.run import ShareOptions, simulate
from slurm_hadar.sharing.simulation.workloads import draw_trace
from slurm_hadar.sharing.turns import Policy

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
GB = 10**9
#: Their peaks do not fit together: 6 and 5 GB kept, 5 and 3 GB within an iteration.
TWO = (Training(0.0, Demand(6 * GB, 5 * GB), 0.03), Training(0.4, Demand(5 * GB, 3 * GB), 0.05))
SHOWN = (Policy.FIFO, Policy.SRTF, Policy.FSP, Policy.FAIR, Policy.PACK)
_WINDOW_S = 1.0


def memory(seconds: float = 1.2) -> bytes:
    """What two jobs keep, and what the one needs whose iteration it is."""
    look = Look.of(False)
    turns = turns_of(TWO, seconds)
    with drawing(look, 1, 1, 9.0, 3.4) as (_, axes, out):
        axis = np.ravel(axes)[0]
        kept = np.zeros(2)
        for place, job in enumerate(TWO):
            amount = job.demand.persistent_bytes / GB
            axis.fill_between([job.join_s * 1e3, seconds * 1e3], kept, kept + amount, step="post", alpha=0.35,
                              color=look.colour(place), label=f"job {place + 1} keeps", linewidth=0)  # fmt: skip
            kept = kept + amount
        for place, (job, own) in enumerate(zip(TWO, turns, strict=True)):
            for number, (begin, end) in enumerate(own):
                there = sum(other.demand.persistent_bytes for other in TWO if other.join_s <= begin) / GB
                label = f"job {place + 1} within an iteration" if number == 0 else None
                axis.bar(begin * 1e3, job.demand.ephemeral_bytes / GB, (end - begin) * 1e3, there, align="edge",
                         color=look.colour(place), label=label, linewidth=0)  # fmt: skip
        axis.axhline(CAPACITY / GB, color=look.ink, linewidth=1)
        axis.text(5, CAPACITY / GB + 0.2, "memory of the GPU")
        axis.axhline(sum(job.demand.alone_bytes for job in TWO) / GB, color=look.faint, linewidth=1, linestyle="--")
        axis.text(5, sum(job.demand.alone_bytes for job in TWO) / GB + 0.2, "both peaks at once")
        axis.set_xlim(0, seconds * 1e3)
        axis.set_ylim(0, 21)
        axis.set_xlabel("ms")
        axis.set_ylabel("GB")
        axis.legend(ncols=2, loc="lower right")
    return out.getvalue()


def on_a_gpu(found: dict[str, Any]) -> bytes:
    """What the driver said was taken while two trainings took turns, and whose iteration it was. An iteration that
    waits for its turn within is drawn from where it was given it: where the other's ended."""
    look = Look.of(False)
    taken, iterations = found["by turns"]["taken"], found["by turns"]["iterations"]
    end = max(after for own in iterations.values() for _, after in own)
    with drawing(look, 1, 1, 9.0, 3.4) as (_, axes, out):
        axis = np.ravel(axes)[0]
        moments = [*(at for at, _ in taken), end + 0.5]
        amounts = [used / GB for _, used in taken]
        axis.fill_between(moments, [*amounts, amounts[-1]], step="post", color=look.ink, alpha=0.25, linewidth=0,
                          label="taken, as the driver says")  # fmt: skip
        for place, (number, own) in enumerate(sorted(iterations.items())):
            ends = [after for other, others in iterations.items() if other != number for _, after in others]
            for first, (asked, after) in enumerate(own):
                began = max([asked, *(moment for moment in ends if asked < moment < after)])
                axis.bar(began, 4, after - began, -6, align="edge", color=look.colour(place), linewidth=0,
                         label=f"an iteration of training {number}" if first == 0 else None)  # fmt: skip
        peaks = sum(found[f"alone {number}"]["most_bytes"] for number in (1, 2)) / GB
        for height, what in ((found["gpu_bytes"] / GB, "memory of the GPU"), (peaks, "both peaks at once")):
            axis.axhline(height, color=look.ink, linewidth=1, linestyle="-" if "GPU" in what else "--")
            axis.text(0, height + 1.5, what)
        axis.set_xlim(-0.5, end + 0.5)
        axis.set_ylim(-8, peaks + 40)
        axis.set_xlabel("s")
        axis.set_ylabel("GB")
        axis.legend(ncols=3, loc=(0.0, 0.86), framealpha=0.0)
    return out.getvalue()


def shares(seconds: float) -> bytes:
    """Of the GPU's time, of three equal jobs that join one after the other."""
    look = Look.of(False)
    turns = turns_of([Training(n * seconds / 3) for n in range(3)], seconds)
    moments = np.arange(_WINDOW_S / 2, seconds - _WINDOW_S / 2, 0.1)
    with drawing(look, 1, 1, 9.0, 3.0) as (_, axes, out):
        axis = np.ravel(axes)[0]
        for place, own in enumerate(turns):
            axis.plot(moments, [_share(own, at) for at in moments], color=look.colour(place), label=f"job {place + 1}")
        every = [turn for own in turns for turn in own]
        axis.plot(moments, [_share(every, at) for at in moments], color=look.ink, linewidth=1, label="all")
        axis.set_ylim(0, 1.1)
        axis.set_xlim(0, seconds)
        axis.set_xlabel(f"s; each point is the share of the {_WINDOW_S:g} s around it")
        axis.set_ylabel("share of the time")
        axis.legend(ncols=4, loc=(0.55, 0.66))
    return out.getvalue()


def _share(turns: Sequence[tuple[float, float]], at: float) -> float:
    begin, end = at - _WINDOW_S / 2, at + _WINDOW_S / 2
    return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in turns) / _WINDOW_S


def completion_times() -> bytes:
    """Of the first trace under each policy."""
    jobs = draw_trace(100, 1)
    found = {str(p): [job.jct_s for job in simulate(jobs, p, ShareOptions(16 * GB)).times] for p in SHOWN}
    return jct_cdf(found)


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="Of the three jobs that join.")
def main(seconds: float) -> None:
    """Draw them."""
    (RESULTS / "sharing_memory.png").write_bytes(memory())
    seen = json.loads((RESULTS / "sharing_gpu.json").read_text())["memory"]
    (RESULTS / "sharing_gpu_memory.png").write_bytes(on_a_gpu(seen))
    (RESULTS / "sharing_shares.png").write_bytes(shares(seconds))
    (RESULTS / "sharing_jct.png").write_bytes(completion_times())


if __name__ == "__main__":
    main()
