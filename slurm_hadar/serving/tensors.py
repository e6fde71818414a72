"""The Open Inference Protocol's names of tensors' types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["DATATYPES", "NAMES", "as_json", "fitted"]

#: BYTES is not served
DATATYPES: Mapping[str, Any] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip

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
