"""Recurring jobs that never say how long they are, on a real Slurm: seen to end, learned from, put in order."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

pytestmark = pytest.mark.slurm
SETTINGS = (
    "controller.round_s=1", "policy.name=asrpt", "predict.retrain_s=86400", "predict.retry_s=2", "predict.min_jobs=4",
)  # fmt: skip
LENGTHS = {"short": 3, "long": 15}


@pytest.mark.thorough
def test_the_job_expected_to_be_short_goes_first(make_cluster: Any, make_live: Any, poll: Any) -> None:
    """Two kinds of jobs end, a training begins by itself, and of two that wait the later but shorter one starts."""
    live = make_live(make_cluster("v100:1x2"))

    def run(name: str, gpus: int = 1) -> str:
        return live.submit(
            f"--gres=gpu:{gpus}",
            f"--job-name={name}",
            comment="hadar:lose=no",
            script=f"sleep {LENGTHS.get(name, 0)}\n",
        )

    def ended() -> Counter[str]:
        return Counter(r.name for r in live.journal.jobs_since(0.0) if r.final == "COMPLETED" and r.ran_s)

    live.daemon(settings=SETTINGS)
    for name in ("short", "long", "short", "long"):
        run(name)

    def enough() -> bool:
        if not live.cluster.run(["squeue", "-h", "-o", "%i"]).stdout.split():
            for name in LENGTHS:  # on a starved machine no round may have seen one of them running
                if ended()[name] < 2:
                    run(name)
        return all(ended()[name] >= 2 for name in LENGTHS)

    poll(enough, 240.0, 1.0)
    stored = poll(lambda: [t for t in live.journal.trainings() if t["version"]], 120.0, 0.5)
    assert stored[0]["predictor"] == "group mean" and "are needed to learn from" in stored[0]["detail"]
    log = (live.work / "controller.log").read_text()
    assert "predictor: Slurm keeps no accounts" in log and "goes by the group mean, not by a forest" in log

    blocker = live.submit("--gres=gpu:2", "--job-name=blocker", comment="hadar:pin=yes", script="sleep 600\n")
    poll(lambda: live.state_of(blocker) == "RUNNING", 60.0)
    waiting = {name: run(name, gpus=2) for name in ("long", "short")}
    found = {name: poll(lambda job=job: _forecast(live, job), 60.0, 0.5) for name, job in waiting.items()}
    assert found["long"]["expected_s"] > 2 * found["short"]["expected_s"]
    told = live.hadar("explain", waiting["short"]).stdout
    assert re.search(r"size +predicted: \d+ s alone on the fastest GPUs", told), told
    assert re.search(
        rf"from \d+ earlier runs of {live.cluster.user}/short, by mean of its group \(version 000\d\)", told
    )
    lines = {line["job_id"]: line for line in json.loads(live.hadar("queue", "--json").stdout)}
    assert lines[waiting["long"]]["size"] == "predicted" and lines[waiting["long"]]["forecast"]["runs"] >= 2

    live.cluster.run(["scancel", blocker])
    poll(lambda: all(live.state_of(job) != "PENDING" for job in waiting.values()), 120.0)
    began = {name: live.field(job, "StartTime") for name, job in waiting.items()}
    assert began["short"] < began["long"]


def _forecast(live: Any, job: str) -> dict[str, Any] | None:
    record = live.journal.job(job)
    return record.forecast if record is not None and record.forecast else None
