"""A search for hyper-parameters in a job that is moved, or that loses the node on which it is searched from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]
pytest.importorskip("optuna")

ROOT = Path(__file__).resolve().parents[4]
DEADLINE_S = 240.0
#: Saves at SIGTERM and goes on, as a loop of ours does; endless until there is a file ``go``.
STUDY = """
import os, pathlib, signal, time

def objective(trial):
    x = trial.suggest_float("x", 0.0, 1.0)
    saved = pathlib.Path(os.environ["HADAR_JOB_DIR"]) / "saved"
    step, asked = int(saved.read_text()) if saved.exists() else 0, []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    while step < 3 or (trial.number > 1 and not pathlib.Path("go").exists()):
        time.sleep(0.2)
        step += 1
        trial.report(x, step)
        if asked:
            saved.write_text(str(step))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
    return x
"""
SCRIPT = (
    f"exec {sys.executable} -m slurm_hadar.cli.main tune run study.py:objective --trials 6 --algorithm random "
    "--storage sqlite:///tune.db --json result.json\n"
)
#: Saves at each step, and says from which it goes on.
SAVES = """
import os, pathlib, time

def objective(trial):
    x = trial.suggest_float("x", 0.0, 1.0)
    folder = pathlib.Path(os.environ["HADAR_JOB_DIR"])
    saved = folder / "saved"
    step = int(saved.read_text()) if saved.exists() else 0
    with (folder / "begun").open("a") as begun:
        begun.write(f"{step}\\n")
    while step < 3 or (trial.number > 1 and not pathlib.Path("go").exists()):
        time.sleep(0.2)
        step += 1
        new = folder / f"saved-{os.getpid()}"
        new.write_text(str(step))
        new.replace(saved)
        trial.report(x, step)
    return x
"""


def _events(live: Any, what: str, run: int = 0) -> list[dict[str, Any]]:
    """From the beginning of that run of the tuner on."""
    text = "".join(file.read_text() for file in live.work.glob("tune.db.hadar/*/events.jsonl"))
    found = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    begun = [n for n, event in enumerate(found) if event["event"] == "began"]
    return [event for event in found[begun[run] :] if event["event"] == what] if run < len(begun) else []


def _env(live: Any, study: str) -> dict[str, str]:
    """With the study's file where the job runs."""
    (live.work / "study.py").write_text(study)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    return {**clean, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(live.work)}


def test_a_search_goes_on_with_other_gpus(live: Any, poll: Any) -> None:
    """Two GPUs, then four on another node: what was finished stays, what ran goes on, all are used."""

    def events(what: str) -> list[dict[str, Any]]:
        return _events(live, what)

    env = _env(live, STUDY)
    blocker = live.submit("--gres=gpu:4", "-N6", comment="")  # so that Slurm does not start it by itself
    job = live.submit("--gres=gpu:2", comment="hadar:ckpt=yes,gpus=2-4", script=SCRIPT, env=env)
    controller = live.controller()
    controller.run_round()
    live.cluster.run(["scancel", blocker])
    poll(lambda: not live.gpus(blocker))
    live.place(**{f"j{job}": {"v100-1": 2}})
    controller.run_round()
    poll(lambda: len(events("over")) == 2 and len(events("start")) >= 4 and events("value"), DEADLINE_S)
    live.place(**{f"j{job}": {"v100-2": 4}})
    assert controller.run_round().record.failed == 0
    poll(lambda: live.holds(job, {"v100-2": 4}), DEADLINE_S)
    poll(lambda: len([e for e in events("start") if "v100-2" in e["gpus"][0]]) == 4, DEADLINE_S)
    live.finish()
    poll(lambda: live.state_of(job) == "COMPLETED", DEADLINE_S)

    assert [event["gpus"] for event in events("began")] == [2, 4]
    assert json.loads((live.work / "result.json").read_text())["trials"] == {"complete": 6}
    over = [event["trial"] for event in events("over")]
    assert sorted(over) == list(range(6))
    there = [event for event in events("start") if "v100-2" in event["gpus"][0]]
    assert len({gpu for event in there for gpu in event["gpus"]}) == 4
    assert not {event["trial"] for event in there} & set(over[:2])
    steps = [(event["trial"], event["step"]) for event in events("value")]
    assert len(steps) == len(set(steps))


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["dead", "unreachable"])
def test_the_tuners_own_node_dies(make_cluster: Callable[..., Any], make_live: Any, poll: Any, whole: bool) -> None:
    """Slurm starts the job again on other nodes, and the study goes on: no trial that was over is repeated, none is
    lost, and those that ran go on from what they had saved. A tuner that outlives its node's slurmd gives the study
    up, and fails none of the trials that Slurm ends."""
    live = make_live(make_cluster(nodes="v100:3x2"))
    script = SCRIPT.replace("--json result.json", "--json result-${SLURM_RESTART_COUNT:-0}.json")
    job = live.submit("-N2", "--gres=gpu:2", comment="", script=script, env=_env(live, SAVES))
    poll(lambda: len(_events(live, "over")) == 2 and len(_events(live, "start")) == 6, DEADLINE_S)
    poll(lambda: {e["trial"] for e in _events(live, "value") if e["step"] > 3} == {2, 3, 4, 5}, DEADLINE_S)
    over = {event["trial"] for event in _events(live, "over")}
    tuners_node = live.field(job, "BatchHost")
    live.lose_node(tuners_node, whole)
    live.tell_of_loss(tuners_node)
    poll(lambda: live.start_again(job), DEADLINE_S)
    poll(lambda: len(_events(live, "start", run=1)) == 4, DEADLINE_S)
    live.finish()
    poll(lambda: live.state_of(job) == "COMPLETED", DEADLINE_S)

    assert json.loads((live.work / "result-1.json").read_text())["trials"] == {"complete": 6}
    again = _events(live, "start", run=1)
    assert {event["trial"] for event in again} == set(range(6)) - over
    assert not any(tuners_node in gpu for event in again for gpu in event["gpus"])
    assert sorted(event["trial"] for event in _events(live, "over")) == list(range(6))
    for trial in set(range(6)) - over:
        first, *then = next(live.work.glob(f"tune.db.hadar/*/trials/{trial}/begun")).read_text().split()
        assert first == "0" and then and min(int(step) for step in then) >= 3
    steps = [(event["trial"], event["step"]) for event in _events(live, "value")]
    assert len(steps) == len(set(steps))
    log = (live.work / f"{job}.out").read_text()
    assert "failed" not in log and ("has started job" in log) is not whole, log
