"""Ask a model server: needs nothing but Python and NumPy.

client = ServingClient("http://127.0.0.1:8642")
answer = client.infer("sentiment", {"tokens": tokens}, application="reviews", deadline_ms=100)
answer.outputs["score"], answer.trace()
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.tensors import DATATYPES, JSON_BYTES, NAMES, as_bytes, of_bytes, of_json, unmasked

__all__ = ["InferAnswer", "ServingClient", "binary_body", "outputs_of", "trace_of"]

_WAIT_S = 60.0


@dataclass(frozen=True)
class InferAnswer:
    """``outputs``: arrays by name. ``parameters``: what became of the request on the way, see :meth:`trace`."""

    outputs: Mapping[str, Any]
    parameters: Mapping[str, Any]

    def trace(self) -> str:
        """``queued 12 ms, batch of 4, ran 31 ms, deadline 100 ms``."""
        return trace_of(self.parameters)


def trace_of(parameters: Mapping[str, Any]) -> str:
    """One request's way, from the parameters of its answer."""
    p = parameters
    late = "" if p["on_time"] else f", {p['total_ms'] - p['deadline_ms']:.0f} ms late"
    return (
        f"queued {p['queued_ms']:.0f} ms, batch of {p['batch']}, ran {p['ran_ms']:.0f} ms on worker {p['worker']}, "
        f"deadline {p['deadline_ms']:.0f} ms{late}"
    )


def binary_body(
    inputs: Mapping[str, Any],
    application: str = "",
    deadline_ms: float | None = None,
    late_costs: Mapping[float, float] | None = None,
) -> tuple[bytes, int]:
    """Of the Open Inference Protocol, from arrays, with binary tensors, which have any float, and asking for such; and
    how much of it is JSON. Raises ServingError for a type that the protocol does not have."""
    arrays = _arrays(inputs)
    tensors = [
        {"name": name, "datatype": NAMES[a.dtype], "shape": list(a.shape), "parameters": {"binary_data_size": a.nbytes}}
        for name, a in arrays.items()
    ]
    parameters = {**_parameters(application, deadline_ms, late_costs), "binary_data_output": True}
    told = json.dumps({"inputs": tensors, "parameters": parameters}).encode()
    return b"".join((told, *map(as_bytes, arrays.values()))), len(told)


def _parameters(
    application: str, deadline_ms: float | None, late_costs: Mapping[float, float] | None
) -> dict[str, Any]:
    parameters: dict[str, Any] = {"application": application}
    if deadline_ms is not None:
        parameters["deadline_ms"] = deadline_ms
    if late_costs is not None:
        parameters["late_costs"] = ",".join(f"{after_ms!r}:{cost!r}" for after_ms, cost in late_costs.items())
    return parameters


def _arrays(inputs: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {}
    for name, value in inputs.items():
        try:
            array = unmasked(value)
        except ValueError as error:
            raise ServingError(f"{name} {error}") from None
        if array.dtype.newbyteorder("=") not in NAMES:
            raise ServingError(f"{name} is of type {array.dtype}, which is none of {', '.join(DATATYPES)}")
        arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    return arrays


class ServingClient:
    """One connection, for one thread, opened again where it has broken; a context manager.

    Parameters
    ----------
    url: ``http://HOST:PORT`` or ``https://HOST:PORT``.
    certificates: a file of those to trust, for https; default: the system's.
    """

    def __init__(
        self, url: str, token: str | None = None, certificates: str | None = None, wait_s: float = _WAIT_S
    ) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # no port, or an address with one bracket
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise ServingError(f"{url!r} must read http://HOST:PORT or https://HOST:PORT")
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            trusted = ssl.create_default_context(cafile=certificates)
            self._connection = http.client.HTTPSConnection(host, port, timeout=wait_s, context=trusted)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=wait_s)

    def __enter__(self) -> ServingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def infer(
        self, model: str, inputs: Mapping[str, Any], application: str = "", deadline_ms: float | None = None,
        late_costs: Mapping[float, float] | None = None,
    ) -> InferAnswer:  # fmt: skip
        """``late_costs``: what is lost by an answer so many milliseconds behind the deadline, beside what was lost
        before, in parts of the whole; default: all of it at the deadline. Raises ServingError where it is refused
        (``status`` and the server's reason) or cannot be asked."""
        body, json_bytes = binary_body(inputs, application, deadline_ms, late_costs)
        path = f"/v2/models/{quote(model, safe='')}/infer"
        told, data = self._ask("POST", path, body, {JSON_BYTES: str(json_bytes)})
        return InferAnswer(outputs_of(told, data), told.get("parameters", {}))

    def metadata(self, model: str) -> dict[str, Any]:
        """What the server tells of a model: its inputs and outputs. Raises ServingError."""
        found: dict[str, Any] = self._told(f"/v2/models/{quote(model, safe='')}")
        return found

    def examples(self, model: str) -> list[dict[str, Any]]:
        """Bodies of requests that the model gave as examples, with their applications."""
        found: list[dict[str, Any]] = self._told(f"/v2/models/{quote(model, safe='')}/examples")
        return found

    def ready(self) -> bool:
        """Whether requests are accepted. Raises ServingError where nobody answers."""
        try:
            self._told("/v2/health/ready")
        except ServingError as error:
            if error.status == 503:
                return False
            raise
        return True

    def status(self) -> dict[str, Any]:
        """Queue, workers and applications."""
        found: dict[str, Any] = self._told("/status")
        return found

    def _is_closed(self) -> bool:
        """Whether the server has ended a connection that nobody used, as after a minute or a restart of it."""
        if self._connection.sock is None:
            return False
        says = select.poll()  # of any number of open files
        says.register(self._connection.sock, select.POLLIN)
        return bool(says.poll(0))

    def _told(self, path: str) -> Any:
        return self._ask("GET", path)[0]

    def _ask(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Any, memoryview]:
        """What the JSON of the answer says, and the binary data behind it."""
        if self._is_closed():
            self._connection.close()  # the request opens it again
        try:
            self._connection.request(method, path, content, {**self._headers, **(headers or {})})
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: of a host that is no name
            self._connection.close()  # the next request opens it again
            raise ServingError(f"{self._url} does not answer: {error or type(error).__name__}") from None
        try:
            json_bytes = int(answer.getheader(JSON_BYTES, len(body)))
            found = json.loads(body[:json_bytes])
        except ValueError:
            raise ServingError(f"{self._url} answers {answer.status} with no JSON", answer.status) from None
        if answer.status != 200:
            why = found.get("error") if isinstance(found, dict) else None
            raise ServingError(f"{self._url}: {why or answer.status}", answer.status)
        return found, memoryview(body)[json_bytes:]


def outputs_of(told: Mapping[str, Any], data: memoryview) -> dict[str, Any]:
    """The arrays of an answer, which may be written to. Raises ServingError for what is none."""
    outputs, begin = {}, 0
    try:
        for tensor in told["outputs"]:
            name, datatype, shape = tensor["name"], tensor["datatype"], tensor["shape"]
            size = (tensor.get("parameters") or {}).get("binary_data_size")
            if size is None:
                outputs[name] = of_json(tensor["data"], datatype, shape)
            else:
                outputs[name] = of_bytes(data[begin : begin + size], datatype, shape).copy()
                begin += size
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ServingError(f"the answer is none of the Open Inference Protocol: {error!r}") from error
    return outputs
