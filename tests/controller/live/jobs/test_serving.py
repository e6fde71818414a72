"""A server of models whose size the controller changes: more when it wants more, less when a training wants what it
does not need."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_hadar.errors import ServingError
from slurm_hadar.policies import registry
from slurm_hadar.serving.client import ServingClient
from slurm_hadar.serving.load import run_load
from slurm_hadar.serving.trace import intended_of

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[4]
DEADLINE_S = 120.0
WAITING = 3
#: A look each second at what came in the last six: else the test would take minutes.
SERVER = """
import sys
import slurm_hadar.serving.server.scaler as scaler
from slurm_hadar.cli.main import main
scaler.EACH_S, scaler.SEEN_S = 1.0, 6.0
sys.argv[1:] = ["serve", "run", "{models}:build", "--workers", "{workers}", "--goal", "0.9", "--slo", "400ms",
                "--max-batch", "1", "--port", "{port}"]
if __name__ == "__main__":
    main()
"""


class Server:
    def __init__(
        self, live: Any, *options: str, workers: str = "1-2", comment: str = "hadar:ckpt=yes,gpus=1-2"
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.answered_by: list[str] = []
        self.url = f"http://127.0.0.1:{self.port}"
        models = ROOT / "tests/serving/models.py"
        (live.work / "serve.py").write_text(SERVER.format(models=models, port=self.port, workers=workers))
        path = os.pathsep.join([str(ROOT / "wrappers"), str(Path(sys.executable).parent), os.environ["PATH"]])
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR", "CUDA"))}
        env = {**clean, "PATH": path, "HADAR_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        script = "hadar-srun --ntasks=1 -- python serve.py\n"
        self.job = live.submit("--gres=gpu:1", *options, comment=comment, script=script, env=env)

    def workers(self) -> int:
        """Ready ones; 0 where nothing answers."""
        return sum(w["state"] != "starting" for w in self._status().get("workers", ()))

    def states(self) -> dict[str | None, str]:
        """By node; None: the server's own."""
        return {w["node"]: w["state"] for w in self._status().get("workers", ())}

    def told(self) -> int | None:
        return self._status().get("scaling", {}).get("told")

    def waiting(self) -> int:
        status = self._status()
        return status["queued"] + sum(w["batch"] for w in status["workers"])

    def _status(self) -> dict[str, Any]:
        try:
            with ServingClient(self.url) as client:
                return client.status()
        except ServingError:
            return {}

    def ask(self, ms: float, answers: list[Any]) -> threading.Thread:
        def ask() -> None:
            with ServingClient(self.url) as client:
                inputs = {"ms": np.array([ms], np.float32), "values": np.array([20, 22])}
                answer = client.infer("sleeper", inputs, deadline_ms=60_000)
                workers.append(answer.parameters["worker"])
                answers.append(answer.outputs["sum"].tolist())

        workers = self.answered_by

        thread = threading.Thread(target=ask)
        thread.start()
        return thread

    def load(self) -> threading.Thread:
        """Ten requests of 150 ms each second: too many for one worker."""
        intended = intended_of("poisson:rate=10,seconds=30,seed=1", 0.4, {"slow": 1.0})
        inputs = [
            {"name": "ms", "shape": [1], "datatype": "FP32", "data": [150.0]},
            {"name": "values", "shape": [1], "datatype": "INT64", "data": [1]},
        ]
        example = {"slow": [{"inputs": inputs, "parameters": {"application": "slow"}}]}
        thread = threading.Thread(target=lambda: run_load(self.url, "sleeper", intended, example), daemon=True)
        thread.start()
        return thread


def test_a_server_grows_with_its_load_and_gives_back_to_a_training(
    make_cluster: Callable[..., Any], make_live: Callable[..., Any], poll: Any
) -> None:
    live = make_live(make_cluster(nodes="v100:1x2"))
    controller = live.controller(policy=registry.get("hadar"), channel=True)
    server = Server(live)
    poll(lambda: server.workers() == 1, DEADLINE_S)
    poll(lambda: live.news(server.job) and live.news(server.job).report.wanted == 1, DEADLINE_S)
    assert controller.run_round().record.moves == 0

    server.load()
    poll(lambda: live.news(server.job).report.wanted == 2, DEADLINE_S)
    answers: list[Any] = []
    asking = [server.ask(400.0, answers) for _ in range(WAITING)]
    poll(lambda: server.waiting() >= WAITING, DEADLINE_S)
    grown = controller.run_round()
    assert (grown.record.moves, grown.record.failed) == (1, 0), grown.outcome.log
    for thread in asking:
        thread.join(DEADLINE_S)
    assert answers == [[42]] * WAITING, "accepted, and lost in the restart"
    poll(lambda: server.workers() == 2, DEADLINE_S)
    assert live.holds(server.job, {"v100-1": 2})

    poll(lambda: server.told() == 1, DEADLINE_S)
    poll(lambda: live.news(server.job).report.wanted == 1, DEADLINE_S)
    assert controller.run_round().record.moves == 0, "nobody else wants its GPU"
    training = live.submit("--gres=gpu:1")
    poll(lambda: controller.run_round() and live.holds(training, {"v100-1": 1}), DEADLINE_S)
    assert live.holds(server.job, {"v100-1": 1})
    poll(lambda: server.workers() == 1, DEADLINE_S)
    said = [e["why"] for e in live.journal.history(server.job) if e.get("event") == "wanted"]
    assert said == [f"its server wants {n}" for n in ("1 worker", "2 workers", "1 worker")]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "freezes"])
def test_workers_on_two_nodes_of_which_one_is_lost(
    make_cluster: Callable[..., Any], make_live: Callable[..., Any], poll: Any, how: signal.Signals
) -> None:
    """Both serve; what the lost one ran is run again by the other before Slurm has noticed, and the server goes on."""
    live = make_live(make_cluster(nodes="v100:2x1"))
    server = Server(live, "-N2", "--no-kill", workers="2", comment="")
    poll(lambda: list(server.states().values()) == ["idle", "idle"], DEADLINE_S)
    (node,) = (node for node in server.states() if node is not None)
    assert {node, live.field(server.job, "BatchHost")} == {"v100-1", "v100-2"}

    answers: list[Any] = []
    for thread in [server.ask(300.0, answers) for _ in range(4)]:
        thread.join(DEADLINE_S)
    assert answers == [[42]] * 4 and {name.partition(".")[0] for name in server.answered_by} == {"0", "1"}

    answers.clear()
    asking = [server.ask(4000.0, answers) for _ in range(2)]
    poll(lambda: list(server.states().values()) == ["busy", "busy"], DEADLINE_S)
    server.answered_by.clear()
    live.lose_node(node, how=how)
    for thread in asking:
        thread.join(DEADLINE_S)
    assert answers == [[42]] * 2 and {name.partition(".")[0] for name in server.answered_by} == {"0"}
    silent = f"on {node} has not been heard of" in (live.work / f"{server.job}.out").read_text()
    assert silent or how is signal.SIGKILL  # a srun whose slurmstepd has been killed may tell sooner

    live.tell_of_loss(node)
    server.ask(1.0, answers).join(DEADLINE_S)
    assert answers[-1] == [42] and live.state_of(server.job) == "RUNNING"
    live.cluster.run(["scancel", server.job])
    poll(lambda: not server.states(), DEADLINE_S)


def test_a_requeue_under_workers_on_two_nodes(
    make_cluster: Callable[..., Any], make_live: Callable[..., Any], poll: Any
) -> None:
    """Whom it has accepted is answered, whichever node's worker had begun with it."""
    live = make_live(make_cluster(nodes="v100:2x1"))
    server = Server(live, "-N2", workers="2", comment="")
    poll(lambda: list(server.states().values()) == ["idle", "idle"], DEADLINE_S)
    answers: list[Any] = []
    asking = [server.ask(1000.0, answers) for _ in range(2)]
    poll(lambda: list(server.states().values()) == ["busy", "busy"], DEADLINE_S)
    live.cluster.run(["scontrol", "requeue", server.job])
    for thread in asking:
        thread.join(DEADLINE_S)
    assert answers == [[42]] * 2
