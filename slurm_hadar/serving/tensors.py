"""The Open Inference Protocol's names of tensors' types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["DATATYPES", "JSON_BYTES", "NAMES", "as_bytes", "as_json", "fitted", "of_bytes", "of_json", "unmasked"]

#: BYTES is not served
DATATYPES: Mapping[str, Any] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip

#: the header that says where a body's JSON ends and its binary data begin
JSON_BYTES = "Inference-Header-Content-Length"

#: the name of a NumPy type
NAMES: Mapping[Any, str] = {np.dtype(kind): name for name, kind in DATATYPES.items()}


def fitted(values: Any, datatype: str) -> Any:
    """The array, of the datatype, with the same values but for rounding to the precision of floats; None where it
    cannot have them: a fraction or a large number as an integer, one beyond the range of a float."""
    given, kind = np.asarray(values), np.dtype(DATATYPES[datatype])
    if given.dtype == kind:
        return given
    with np.errstate(over="ignore", invalid="ignore"):
        found = given.astype(kind)
    if not given.size:
        return found
    same = (np.isfinite(found) == np.isfinite(given)).all() if kind.kind == "f" else (found == given).all()
    return found if same else None


def as_json(arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tensors as the protocol's JSON has them, data flat."""
    return [
        {"name": name, "datatype": NAMES[a.dtype], "shape": list(a.shape), "data": a.reshape(-1).tolist()}
        for name, a in arrays.items()
    ]


def as_bytes(array: Any) -> bytes:
    """An array's values as the protocol's binary data have them: row by row, little-endian."""
    return np.asarray(array, array.dtype.newbyteorder("<")).tobytes()


def of_bytes(data: Any, datatype: str, shape: Sequence[int]) -> Any:
    """The array that :func:`as_bytes` was given. Where the host is little-endian it is a view of ``data``, which is
    not copied. Raises ValueError for another number of bytes."""
    kind = np.dtype(DATATYPES[datatype])
    return np.frombuffer(data, kind.newbyteorder("<")).astype(kind, copy=False).reshape(shape)


def of_json(data: Any, datatype: str, shape: Sequence[int]) -> Any:
    """The array that :func:`as_json` was given. Raises TypeError or ValueError for what cannot be one."""
    return np.array(data, DATATYPES[datatype]).reshape(shape)


def unmasked(value: Any) -> Any:
    """The value as an array. Raises ValueError for one with masked elements, whose masks no datatype can have."""
    if np.ma.is_masked(value):
        raise ValueError("has masked elements, which would lose their mask: fill them, as with .filled(value)")
    return np.asarray(value)
