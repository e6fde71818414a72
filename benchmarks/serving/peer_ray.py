"""Ray Serve with a model, as its documentation does it; and what other servers need for that, too.

    python -m benchmarks.serving.peer_ray MODEL PORT           reads lines of JSON: configurations to switch to

It answers the bodies that our server answers, and prints ``ready``. It does not know of deadlines or applications.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slurm_hadar.serving.server.model import ServedModel, load_models
from slurm_hadar.serving.tensors import DATATYPES, as_json

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "serving" / "models.py"
#: who builds each; ``slept`` takes time and no CPU, as a model on a GPU
SOURCES = {
    "slept": f"{Path(__file__).resolve().parent / 'beside.py'}:build",
    "texts": f"{_EXAMPLES}:texts",
    "exits": f"{_EXAMPLES}:exits",
}


def arrays(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request's tensors."""
    return {t["name"]: np.asarray(t["data"], DATATYPES[t["datatype"]]).reshape(t["shape"]) for t in body["inputs"]}


def answer(outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"outputs": as_json({name: np.asarray(a) for name, a in outputs.items()})}


def built(name: str) -> ServedModel:
    """Warm."""
    (model,) = load_models(SOURCES[name])
    for requests in model.examples().values():
        for request in requests:
            model.infer([request])
    return model


def ray_server(name: str, port: int) -> None:
    import ray
    from ray import serve
    from starlette.requests import Request

    @serve.deployment(max_ongoing_requests=2000, num_replicas=1, ray_actor_options={"num_cpus": 1})
    class Model:
        def __init__(self) -> None:
            self._model = built(name)

        def reconfigure(self, config: dict[str, Any]) -> None:
            self._batch.set_max_batch_size(config["batch"])
            self._batch.set_batch_wait_timeout_s(config["wait_s"])

        @serve.batch(max_batch_size=1, batch_wait_timeout_s=0.0)  # type: ignore[untyped-decorator]
        async def _batch(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
            return [answer(found) for found in await asyncio.to_thread(self._model.infer, requests)]

        async def __call__(self, request: Request) -> Any:
            return await self._batch(arrays(json.loads(await request.body())))

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    for line in sys.stdin:
        serve.run(Model.options(user_config=json.loads(line)).bind(), route_prefix="/")  # type: ignore[attr-defined]
        print("ready", flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    ray_server(sys.argv[1], int(sys.argv[2]))
