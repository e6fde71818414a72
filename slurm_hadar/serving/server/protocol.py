"""The Open Inference Protocol (version 2, JSON): what a client sends, checked against the model's metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.scheduling.request import MISS, Step
from slurm_hadar.serving.server.model import ModelInfo, TensorSpec
from slurm_hadar.serving.tensors import DATATYPES, NAMES, fitted

__all__ = ["Asked", "encode", "encode_in_pieces", "read_request"]

_PIECE = 10_000  # numbers: about 5 ms of encoding
_LONGEST_TAG = 64
_DEEP = 8  # lists in lists, whatever the shape says
_LONGEST_SIDE = 1 << 31  # of a tensor
_LONGEST_MS = 86_400_000.0
_MOST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent. ``deadline_s``: from now on; None: the server's SLO. ``steps``: what it costs to be
    late. ``outputs``: those that are to be answered; none: all."""

    inputs: dict[str, Any]
    identity: str
    application: str
    deadline_s: float | None
    steps: tuple[Step, ...] = MISS
    outputs: tuple[str, ...] = ()

    def of(self, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What it is answered of a model's outputs."""
        return {name: outputs[name] for name in self.outputs} if self.outputs else outputs


def read_request(body: bytes, info: ModelInfo) -> Asked:
    """Raises ServingError (400) naming what is wrong with it."""
    try:
        asked = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _bad(f"the body is no JSON: {error}") from None
    if not isinstance(asked, dict):
        raise _bad("the body must be a JSON object with 'inputs'")
    identity = asked.get("id", "")
    if not isinstance(identity, str) or len(identity) > _LONGEST_TAG:
        raise _bad(f"id must be a text of at most {_LONGEST_TAG} characters")
    parameters = asked.get("parameters", {})
    if not isinstance(parameters, dict):
        raise _bad("parameters must be an object")
    given = asked.get("inputs")
    if not isinstance(given, list) or not all(isinstance(i, dict) for i in given):
        raise _bad("inputs must be a list of tensors")
    known = {spec.name: spec for spec in info.inputs}
    names = [tensor.get("name") for tensor in given]
    if not all(isinstance(name, str) for name in names) or sorted(names) != sorted(known):
        raise _bad(f"model {info.name} takes the inputs {', '.join(sorted(known))}, each once")
    inputs = {tensor["name"]: _tensor(tensor, known[tensor["name"]]) for tensor in given}
    outputs = _outputs(asked.get("outputs", []), info)
    return Asked(inputs, identity, _application(parameters), _deadline_s(parameters), _steps(parameters), outputs)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _bad(message: str) -> ServingError:
    return ServingError(message, 400)


def _outputs(given: Any, info: ModelInfo) -> tuple[str, ...]:
    known = [spec.name for spec in info.outputs]
    names = [one.get("name") if isinstance(one, dict) else None for one in given] if isinstance(given, list) else [None]
    if not all(name in known for name in names) or len(set(names)) < len(names):
        raise _bad(f"outputs must be a list of tensors of model {info.name}, each once: {', '.join(known)}")
    return tuple(name for name in names if name is not None)


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


def _tensor(tensor: Mapping[str, Any], spec: TensorSpec) -> Any:
    name, shape = spec.name, tensor.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= _LONGEST_SIDE for n in shape):
        raise _bad(f"shape of {name} must be a list of whole numbers, each at most {_LONGEST_SIDE}")
    if tensor.get("datatype") != spec.datatype:
        raise _bad(f"datatype of {name} must be {spec.datatype}, not {str(tensor.get('datatype'))[:20]!r}")
    if not spec.admits(shape):
        raise _bad(f"shape of {name} must be {list(spec.shape)} (-1: any length), not {shape[:9]}")
    data = tensor.get("data")
    if not isinstance(data, list):
        raise _bad(f"data of {name} must be a list")
    if not _is_numeric(data, max(_DEEP, len(shape))):
        raise _bad(f"data of {name} are not all of {spec.datatype}")
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
    except ValueError:  # of no values, but with sides that numpy cannot count
        raise _bad(f"shape of {name} is too large") from None


def _is_numeric(data: list[Any], depth: int) -> bool:
    """Whether it holds numbers and truth values alone, within so many lists. Looked at before numpy makes an array,
    which for texts takes room for as many of the longest as there are."""
    for _ in range(depth):
        kinds = set(map(type, data))
        if list not in kinds:
            return kinds <= {int, float, bool}
        data = list(chain.from_iterable(part for part in data if type(part) is list))
    return False


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
    info: ModelInfo, identity: str, outputs: Mapping[str, Any], parameters: Callable[[], Mapping[str, Any]]
) -> Iterator[bytes]:
    """As :func:`encode`, each piece in a few milliseconds: JSON is encoded while nothing else can run, and an answer
    may have millions of numbers. ``parameters`` is asked for them behind the outputs."""
    begun = {"model_name": info.name, **({"id": identity} if identity else {})}
    yield json.dumps(begun)[:-1].encode() + b', "outputs": ['
    for place, (name, array) in enumerate(outputs.items()):
        tensor = {"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape)}
        yield b", " * (place > 0) + json.dumps(tensor)[:-1].encode() + b', "data": ['
        flat = array.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            yield b", " * (start > 0) + json.dumps(_numbers(flat[start : start + _PIECE]))[1:-1].encode()
        yield b"]}"
    yield b'], "parameters": ' + json.dumps(dict(parameters())).encode() + b"}"


def _numbers(array: Any) -> list[Any]:
    values: list[Any] = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [v if math.isfinite(v) else None for v in values]
    return values
