"""The page of regimes beyond the map."""

from __future__ import annotations

from pathlib import Path

from benchmarks.regimes import page
from benchmarks.regimes.beyond import number_of, regime
from benchmarks.regimes.verdict import METRICS, Map

__all__ = ["write"]

_SHOWN = 12


def write(found: Map, policy: str, out: Path, remark: str = "") -> None:
    """``beyond.md`` and ``beyond.json`` in ``out``."""
    (out / "beyond.json").write_text(page.dumped(found, policy, remark), encoding="utf-8")
    duels = page.duels_of(found, policy)
    names = ",".join(p for p in found.policies if p != policy)
    parts = [
        _INTRO.format(count=len(found.cells), policy=policy, names=names, minutes=page.cpu_minutes(found)),
        *([f"**{remark}**"] if remark else []),
        page.goals(found, policy, duels),
        f"## The {_SHOWN} regimes in which `{policy}` does worst\n\n" + _worst(duels),
        "## Policies\n\n" + page.policies(found),
        *page.missing(found),
        _METHOD,
    ]
    (out / "beyond.md").write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")


def _worst(duels: page.Duels) -> str:
    first = sorted(duels["avg_jct_s"].values(), key=lambda d: d.ratio)[:_SHOWN]
    rows = []
    for duel in first:
        number = number_of(duel.cell)
        assert number is not None
        ratios = [f"{duels[metric][duel.cell].ratio:.3f}" for metric in METRICS]
        rows.append([str(number), regime(number).words(), f"`{duel.rival}`", *ratios])
    return page.table(["number", "regime", "best other", *METRICS.values()], rows)


_INTRO = """
# Beyond the map

[The map](regimes.md) has the axes by which `{policy}` was developed. Here are {count} regimes drawn at random from
far wider ranges, one draw of the jobs each. Ratios are as there: the best other policy's figure over that of
`{policy}`, above 1 where `{policy}` is better. Nothing was chosen by them but what elastic jobs pay that keep their
size once they run, by 0, 1, 8, 33, 34, 36 and eight of higher numbers; 11 of still higher ones, and 9 runs of the map,
were then 4 % shorter in average JCT than without that.

```
python -m benchmarks.regimes --beyond {count} --policies {policy},{names} --page
```

This takes {minutes} minutes of CPU. The others are those that are best somewhere on the map. Who is best of five in
a single draw is so by luck, too: against any one of them see [below](#policies).
"""

_METHOD = """
## What is drawn

* **Clusters**: 1 to 5 GPU types, 1 to 10 nodes of each, with 1, 2, 4 or 8 GPUs, 96 GPUs at most. How far apart types
  are (up to 1.3, 4.5 or 12 times), and by how much workloads differ in that (not at all, or with a standard deviation
  of the logarithm of 0.2 or 0.6). 3 or 10 workloads, or one for each job.
* **Jobs**: 60 to 300. Gangs: singles; Philly's mix; 1, 2, 3 and 4; some of 16 among singles; 1, 4 and 8. One regime in
  four is elastic. Run times: log-normal (sigma 0.3 to 2.2), two lengths 25 times apart, or one; medians of a minute to
  four hours.
* **Arrivals**: all at once, or load 0.5 to 1.5, Poisson, in 3 or 10 bursts, or in waves.
* **Restarts**: 0.2 to 50 % of the median run time, times from 1/2 to 2 by job; none, 30, 70 % or all of the jobs
  cannot be moved.
* **Knowledge**: lengths stated, predicted (off by up to 2 or 4 times) or unknown; speeds known, or off by 0.3 or 0.6.
* **Rounds**: of 30, 60 or 360 s, brought forward to 2, 10 or 30 s after the last; first reports at once or after 15 s.

Each regime follows from its number (`benchmarks/regimes/beyond.py`). Raw results: [beyond.json](beyond.json).
"""
