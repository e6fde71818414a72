"""The Open Inference Protocol (version 2): what a client sends, checked against the model's metadata.

Tensors are JSON, or binary data behind the JSON in the order of the tensors (Triton's extension
``binary_tensor_data``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.scheduling.request import MISS, Step
from slurm_hadar.serving.server.model import ModelInfo, TensorSpec
from slurm_hadar.serving.tensors import DATATYPES, JSON_BYTES, NAMES, as_bytes, fitted, of_bytes

__all__ = ["Asked", "binary_data", "encode", "encode_in_pieces", "read_request"]

_PIECE = 10_000  # numbers: about 5 ms of encoding
_LONGEST_TAG = 64
_DEEP = 8  # lists in lists, whatever the shape says
_LONGEST_SIDE = 1 << 31  # of a tensor
_LONGEST_MS = 86_400_000.0
_MOST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent. ``deadline_s``: from now on; None: the server's SLO. ``steps``: what it costs to be
    late. ``outputs``: those that are to be answered; none: all. ``binary``: of these, who goes as binary data."""

    inputs: dict[str, Any]
    identity: str
    application: str
    deadline_s: float | None
    steps: tuple[Step, ...] = MISS
    outputs: tuple[str, ...] = ()
    binary: frozenset[str] = frozenset()

    def of(self, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What it is answered of a model's outputs."""
        return {name: outputs[name] for name in self.outputs} if self.outputs else outputs


def read_request(body: bytes, info: ModelInfo, json_bytes: int | None = None) -> Asked:
    """``json_bytes``: how much of the body is JSON, with binary data behind it; None: all. Raises ServingError (400)
    naming what is wrong with it."""
    if json_bytes is not None and json_bytes > len(body):
        raise _bad(f"{JSON_BYTES} is {json_bytes}, and the body has {len(body)} bytes")
    try:
        asked = json.loads(body if json_bytes is None else body[:json_bytes], parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _bad(f"the body is no JSON: {error}") from None
    if not isinstance(asked, dict):
        raise _bad("the body must be a JSON object with 'inputs'")
    identity = asked.get("id", "")
    if not isinstance(identity, str) or len(identity) > _LONGEST_TAG:
        raise _bad(f"id must be a text of at most {_LONGEST_TAG} characters")
    parameters = _parameters(asked)
    given = asked.get("inputs")
    if not isinstance(given, list) or not all(isinstance(i, dict) for i in given):
        raise _bad("inputs must be a list of tensors")
    known = {spec.name: spec for spec in info.inputs}
    names = [tensor.get("name") for tensor in given]
    if not all(isinstance(name, str) for name in names) or sorted(names) != sorted(known):
        raise _bad(f"model {info.name} takes the inputs {', '.join(sorted(known))}, each once")
    behind = _Binary(body, json_bytes)
    inputs = {tensor["name"]: _tensor(tensor, known[tensor["name"]], behind) for tensor in given}
    behind.end()
    outputs, binary = _outputs(asked.get("outputs", []), parameters, info)
    return Asked(
        inputs, identity, _application(parameters), _deadline_s(parameters), _steps(parameters), outputs, binary
    )


def _parameters(of: Mapping[str, Any]) -> Mapping[str, Any]:
    found = of.get("parameters", {})
    if not isinstance(found, dict):
        raise _bad("parameters must be an object")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON (binary data can have it)")


def _bad(message: str) -> ServingError:
    return ServingError(message, 400)


def _outputs(given: Any, parameters: Mapping[str, Any], info: ModelInfo) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of those that are asked for (none: all), and of those that go as binary data."""
    known = [spec.name for spec in info.outputs]
    names = [one.get("name") if isinstance(one, dict) else None for one in given] if isinstance(given, list) else [None]
    if not all(name in known for name in names) or len(set(names)) < len(names):
        raise _bad(f"outputs must be a list of tensors of model {info.name}, each once: {', '.join(known)}")
    always = parameters.get("binary_data_output", False)
    wishes = {one["name"]: _parameters(one).get("binary_data", always) for one in given}
    if not all(isinstance(wish, bool) for wish in (always, *wishes.values())):
        raise _bad("binary_data of an output, and binary_data_output, must be true or false")
    binary = (name for name in wishes or known if wishes.get(name, always))
    return tuple(wishes), frozenset(binary)


def _application(parameters: Mapping[str, Any]) -> str:
    tag = parameters.get("application", "")
    if not isinstance(tag, str) or len(tag) > _LONGEST_TAG or not (tag == "" or tag.isprintable()):
        raise _bad(f"application must be a printable text of at most {_LONGEST_TAG} characters")
    return tag


def _deadline_s(parameters: Mapping[str, Any]) -> float | None:
    given = parameters.get("deadline_ms")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= _LONGEST_MS:
        raise _bad("deadline_ms must be a number of milliseconds above 0 and up to a day")
    return given / 1e3


def _steps(parameters: Mapping[str, Any]) -> tuple[Step, ...]:
    """``0:0.7,1000:0.3``. A text, as the protocol has no lists in parameters. No client may call itself worth more than
    one who says nothing."""
    given = parameters.get("late_costs")
    if given is None:
        return MISS
    found: list[Step] = []
    for part in given.split(",", _MOST_STEPS) if isinstance(given, str) else [""]:
        after, colon, cost = part.partition(":")
        try:
            found.append(Step(float(after) / 1e3, float(cost)))
        except ValueError:
            colon = ""
        if not colon:
            raise _bad("late_costs must read MS:COST,..., such as 0:0.7,1000:0.3")
    ascending = all(a.after_s < b.after_s for a, b in pairwise(found))
    costs = [step.cost for step in found]
    if not (ascending and found[0].after_s >= 0.0 and found[-1].after_s <= _LONGEST_MS / 1e3):
        raise _bad("late_costs: milliseconds behind the deadline go from 0 up to a day, each more than the one before")
    if not (all(0.0 < cost <= 1.0 for cost in costs) and sum(costs) <= 1.0 + 1e-9 and len(found) <= _MOST_STEPS):
        raise _bad(f"late_costs: at most {_MOST_STEPS} costs above 0, together at most 1")
    return tuple(found)


class _Binary:
    """The binary data of a body, read from its front: each tensor's behind the one before."""

    def __init__(self, body: bytes, json_bytes: int | None) -> None:
        self._told = json_bytes is not None
        self._left = memoryview(body)[len(body) if json_bytes is None else json_bytes :]

    def tensor(self, size: Any, spec: TensorSpec, shape: list[int]) -> Any:
        """The next one. ``size``: bytes that it has, by the word of the client."""
        name, wanted = spec.name, math.prod(shape) * np.dtype(DATATYPES[spec.datatype]).itemsize
        if not self._told:
            raise _bad(f"binary_data_size of {name} needs the header {JSON_BYTES}")
        if type(size) is not int or size != wanted:
            raise _bad(f"binary_data_size of {name} must be {wanted}, as shape {shape[:9]} of {spec.datatype} takes")
        if size > len(self._left):
            raise _bad(f"the body ends within the binary data of {name}")
        data, self._left = self._left[:size], self._left[size:]
        if spec.datatype == "BOOL" and size and np.frombuffer(data, np.uint8).max() > 1:
            raise _bad(f"binary data of {name} are not all of BOOL: each byte must be 0 or 1")
        try:
            return of_bytes(data, spec.datatype, shape)
        except ValueError:
            raise _too_large(name) from None

    def end(self) -> None:
        """Nothing may be left."""
        if self._left:
            raise _bad(f"the body has {len(self._left)} bytes more than its JSON and its inputs' binary_data_size say")


def _too_large(name: str) -> ServingError:
    """Of no values, but with sides that NumPy cannot count."""
    return _bad(f"shape of {name} is too large")


def _tensor(tensor: Mapping[str, Any], spec: TensorSpec, behind: _Binary) -> Any:
    name, shape = spec.name, tensor.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= _LONGEST_SIDE for n in shape):
        raise _bad(f"shape of {name} must be a list of whole numbers, each at most {_LONGEST_SIDE}")
    if tensor.get("datatype") != spec.datatype:
        raise _bad(f"datatype of {name} must be {spec.datatype}, not {str(tensor.get('datatype'))[:20]!r}")
    if not spec.admits(shape):
        raise _bad(f"shape of {name} must be {list(spec.shape)} (-1: any length), not {shape[:9]}")
    size = _parameters(tensor).get("binary_data_size")
    if size is None:
        return _from_json(tensor.get("data"), spec, shape)
    if "data" in tensor:
        raise _bad(f"{name} has data and binary_data_size: give one of them")
    return behind.tensor(size, spec, shape)


def _from_json(data: Any, spec: TensorSpec, shape: list[int]) -> Any:
    name = spec.name
    if not isinstance(data, list):
        raise _bad(f"data of {name} must be a list")
    _check_kinds(data, spec, max(_DEEP, len(shape)))
    try:
        values = np.asarray(data)
        if spec.datatype == "UINT64" and values.dtype.kind == "f":  # numpy's for whole numbers on both sides of 2**63
            values = _whole(np.asarray(data, dtype=object), values)
    except ValueError:
        raise _bad(f"data of {name} is ragged") from None
    if values.size != math.prod(shape):
        raise _bad(f"data of {name} has {values.size} values where shape {shape} has {math.prod(shape)}")
    typed = _typed(values, spec)
    try:
        return typed.reshape(shape)
    except ValueError:
        raise _too_large(name) from None


def _check_kinds(data: list[Any], spec: TensorSpec, depth: int) -> None:
    """Whether it holds numbers alone, or truth values alone for BOOL, within so many lists. Looked at before numpy
    makes an array, which for texts takes room for as many of the longest as there are."""
    admitted = {bool} if spec.datatype == "BOOL" else {int, float}
    kinds: set[type] = {list}
    for _ in range(depth):
        kinds = set(map(type, data))
        if list not in kinds:
            break
        data = list(chain.from_iterable(part for part in data if type(part) is list))
    if kinds <= admitted:
        return
    advice = ""
    if type(None) in kinds and spec.datatype.startswith("FP"):
        advice = ": null is no number; NaN and infinities need binary data"
    raise _bad(f"data of {spec.name} are not all of {spec.datatype}{advice}")


def _whole(objects: Any, floats: Any) -> Any:
    """The numbers as UINT64 where they all are; else as they are."""
    if all(type(n) is int and 0 <= n < 1 << 64 for n in objects.flat):
        return objects.astype(np.uint64)
    return floats


def _typed(values: Any, spec: TensorSpec) -> Any:
    """Of the datatype, unchanged in value but for rounding to the precision of floats."""
    admitted = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[np.dtype(DATATYPES[spec.datatype]).kind]
    if values.size and values.dtype.kind not in admitted:
        raise _bad(f"data of {spec.name} are not all of {spec.datatype}")
    found = fitted(values, spec.datatype)
    if found is None or not np.isfinite(found).all():
        raise _bad(f"data of {spec.name} do not fit into {spec.datatype}")
    return found


def encode(info: ModelInfo, identity: str, outputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> bytes:
    """The answer. What is no number in JSON (not finite) goes as null."""
    return b"".join(encode_in_pieces(info, identity, outputs, lambda: parameters))


def encode_in_pieces(
    info: ModelInfo,
    identity: str,
    outputs: Mapping[str, Any],
    parameters: Callable[[], Mapping[str, Any]],
    binary: Collection[str] = (),
) -> Iterator[bytes]:
    """As :func:`encode`, each piece in a few milliseconds: JSON is encoded while nothing else can run, and an answer
    may have millions of numbers. ``parameters`` is asked for them behind the outputs. ``binary``: outputs whose data
    follow the JSON, by :func:`binary_data`."""
    begun = {"model_name": info.name, **({"id": identity} if identity else {})}
    yield json.dumps(begun)[:-1].encode() + b', "outputs": ['
    for place, (name, array) in enumerate(outputs.items()):
        tensor = {"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape)}
        if name in binary:
            yield (
                b", " * (place > 0) + json.dumps({**tensor, "parameters": {"binary_data_size": array.nbytes}}).encode()
            )
            continue
        yield b", " * (place > 0) + json.dumps(tensor)[:-1].encode() + b', "data": ['
        flat = array.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            yield b", " * (start > 0) + json.dumps(_numbers(flat[start : start + _PIECE]))[1:-1].encode()
        yield b"]}"
    yield b'], "parameters": ' + json.dumps(dict(parameters())).encode() + b"}"


def binary_data(outputs: Mapping[str, Any], binary: Collection[str]) -> list[bytes]:
    """What follows the JSON of an answer."""
    return [as_bytes(array) for name, array in outputs.items() if name in binary]


def _numbers(array: Any) -> list[Any]:
    values: list[Any] = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [v if math.isfinite(v) else None for v in values]
    return values
