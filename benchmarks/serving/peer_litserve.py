"""LitServe with a model, as its documentation does it.

    python -m benchmarks.serving.peer_litserve MODEL PORT BATCH WAIT_S

It answers the bodies that our server answers, and prints ``ready``. It does not know of deadlines or applications.
"""

import sys
from collections.abc import Mapping
from typing import Any

import litserve

from benchmarks.serving.peer_ray import answer, arrays, built


# annotations are no texts in this file: the server reads that of decode_request
class Api(litserve.LitAPI):  # type: ignore[misc]
    """In its worker, which finds the class by its name."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        self._served = built(sys.argv[1])
        print("ready", flush=True)

    def decode_request(self, request: dict[str, Any]) -> dict[str, Any]:
        return arrays(request)

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, x: Any) -> Any:
        return self._served.infer(x) if isinstance(x, list) else self._served.infer([x])[0]

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output: Mapping[str, Any]) -> dict[str, Any]:
        return answer(output)


if __name__ == "__main__":
    name, port, batch, wait_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    api = Api(max_batch_size=batch, batch_timeout=wait_s, api_path=f"/v2/models/{name}/infer")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="error")
