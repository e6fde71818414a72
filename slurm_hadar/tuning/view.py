"""How a tuning run stands, as plain data: for the live table, ``hadar tune status`` and the picture."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from slurm_hadar.tuning.executor.live import Stage

if TYPE_CHECKING:
    from slurm_hadar.tuning.executor.executor import Executor

__all__ = ["snapshot"]

_NAMES = {Stage.WAITING: "waits", Stage.RUNNING: "runs", Stage.AT_RUNG: "at its rung", Stage.ENDED: "ended"}


def snapshot(executor: Executor, trials: int) -> dict[str, Any]:
    """Trials that run, then those that wait, with their widths; counts, the best value yet, and how long the group may
    still take. ``trials``: how many there will be."""
    state, group = executor.state, executor.state.group
    members = group.members if group is not None else []
    rows = [
        {
            "trial": live.number, "state": _NAMES[live.stage],
            "width": str(live.grant.width) if live.grant is not None else "",
            "gpus": [f"{name}:{index}" for name, index in live.at], "step": live.meter.report_step,
            "value": live.value, "left_s": executor.left_s(live),
        }
        for live in sorted(members, key=lambda live: live.stage is not Stage.RUNNING) if live.active
    ]  # fmt: skip
    counts = {name: sum(live.stage is stage for live in state.lives.values()) for stage, name in _NAMES.items()}
    counts["ended"] += state.over_before
    busy = {place for live in state.running() for place in live.at}
    return {
        "state": "running", "trials": trials, "counts": counts, "rows": rows, "gpus": state.sites.count,
        "gpus_busy": len(busy), "best": state.best, "resizes": executor.resizes,
        "group_left_s": executor.expected_s(), "ran_s": time.monotonic() - executor.began_s,
    }  # fmt: skip
