"""Between HTTP and workers, without either."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.scheduling.registry import Name
from slurm_hadar.serving.server.accepted import Accepted
from slurm_hadar.serving.server.dispatcher import Dispatcher, DispatcherOptions
from slurm_hadar.serving.server.metrics import ServingMetrics
from slurm_hadar.serving.server.protocol import Asked
from slurm_hadar.serving.server.workers.pool import WorkerEvents
from slurm_hadar.serving.simulation.scaling import Bounds

MODEL = {"name": "m", "inputs": [], "outputs": []}


class _Workers:
    """One, that is told of batches and says nothing."""

    places = 1
    events: WorkerEvents

    def hear(self, events: WorkerEvents) -> _Workers:
        self.events = events
        return self

    def pids(self) -> dict[str, int]:
        return {"one": 1}

    def proved(self, name: str) -> None:
        pass

    def send(self, _name: str, _frames: Any) -> None:
        pass

    def nodes(self) -> dict[str, str]:
        return {"one": "here"}

    def close(self) -> None:
        pass


def test_who_goes_as_the_batch_ends_leaves_the_others_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's going is known, and its task has not run yet, when the worker's message is read."""

    workers = _Workers()
    monkeypatch.setattr("slurm_hadar.serving.server.dispatcher.Pool", lambda *given: workers.hear(given[-1]))

    async def played() -> tuple[list[Accepted], Dispatcher]:
        dispatcher = Dispatcher(DispatcherOptions("m.py", Bounds(1, 1), 10.0), ServingMetrics(), print, print)
        singles = {"of": [0.01] * 5}
        laws = {"1": 0.01, "4": 0.01}
        told = {"metadata": MODEL, "applications": [], "singles": singles, "batches": laws}
        workers.events.message("one", {"kind": "ready", "models": [told]}, [])
        asked = [dispatcher.accept("m", Asked({"x": np.zeros(1)}, "", "of", 10.0), 1) for _ in range(4)]
        workers.events.message("one", {"kind": "done", "batch": 1, "failures": {}}, [{"y": 1}])
        assert dispatcher.status()["workers"][0]["batch"] == 3
        asked[1].future.cancel()
        workers.events.message("one", {"kind": "done", "batch": 2, "failures": {}}, [{"y": n} for n in (2, 3, 4)])
        for accepted in asked:
            dispatcher.release(accepted)
        dispatcher.close()
        return asked, dispatcher

    asked, dispatcher = asyncio.run(played())

    assert asked[1].future.cancelled()
    assert [asked[n].future.result().outputs["y"] for n in (0, 2, 3)] == [1, 3, 4]
    assert [of["abandoned"] for of in dispatcher.status()["applications"]] == [1]


class _Elsewhere(_Workers):
    """On another node: killed, it is told of as gone at once, as that node may not answer."""

    def start(self, _count: int) -> None:
        pass

    def place(self, _name: str) -> int:
        return 0

    def kill(self, name: str, why: str) -> None:
        self.events.gone(name, why)


def test_a_worker_that_hangs_on_another_node_is_ended_and_others_are_looked_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = _Elsewhere()
    monkeypatch.setattr("slurm_hadar.serving.server.dispatcher.Pool", lambda *given: workers.hear(given[-1]))
    monkeypatch.setattr("slurm_hadar.serving.server.dispatcher._LOOK_S", 0.0)
    told: list[str] = []

    async def played() -> None:
        options = DispatcherOptions("m.py", Bounds(1, 1), 10.0, hang_s=0.0)
        dispatcher = Dispatcher(options, ServingMetrics(), print, told.append)
        ready = {"metadata": MODEL, "applications": [], "singles": {"of": [1e-9] * 5}, "batches": {"1": 1e-9}}
        dispatcher.start()
        for name in ("one", "two"):
            workers.events.message(name, {"kind": "ready", "models": [ready]}, [])
            accepted = dispatcher.accept("m", Asked({"x": np.zeros(1)}, "", "of", 10.0), 1)
            while not any(line.startswith(f"worker {name} hung") for line in told):
                await asyncio.sleep(0)
            accepted.future.cancel()
            dispatcher.release(accepted)
        dispatcher.close()

    asyncio.run(asyncio.wait_for(played(), 30))


def test_who_is_given_up_as_a_batch_is_looked_for_is_answered_though_nobody_else_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = _Workers()
    monkeypatch.setattr("slurm_hadar.serving.server.dispatcher.Pool", lambda *given: workers.hear(given[-1]))

    async def played() -> None:
        options = DispatcherOptions("m.py", Bounds(1, 1), 10.0, Name.NEXUS)
        dispatcher = Dispatcher(options, ServingMetrics(), print, print)
        told = {"metadata": MODEL, "applications": [], "singles": {"of": [1.0] * 5}, "batches": {"1": 1.0}}
        workers.events.message("one", {"kind": "ready", "models": [told]}, [])
        accepted = dispatcher.accept("m", Asked({"x": np.zeros(1)}, "", "of", 0.5), 1)
        with pytest.raises(ServingError, match="the deadline cannot be met"):
            await accepted.future
        dispatcher.release(accepted)
        dispatcher.close()

    asyncio.run(asyncio.wait_for(played(), 30))
