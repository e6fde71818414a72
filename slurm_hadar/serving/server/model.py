"""What a served model is: an object of the user's, and what the server knows of it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Protocol

from slurm_hadar.errors import ConfigError, reason_of
from slurm_hadar.serving.tensors import DATATYPES

__all__ = ["ModelInfo", "ServedModel", "TensorSpec", "Tensors", "check_source", "load_models"]

Tensors = Mapping[str, Any]  # name -> array
_MOST_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of ONE request; -1 in ``shape``: any length."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def metadata(self) -> dict[str, Any]:
        """As the Open Inference Protocol has it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def admits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape is one of these."""
        return len(shape) == len(self.shape) and all(w in (-1, g) for w, g in zip(self.shape, shape, strict=True))


class ServedModel(Protocol):
    """What ``build()`` returns, or several of it. ``inputs`` and ``outputs`` are ``(name, datatype, shape)``.

    ``examples()`` gives requests by application: with these the model is warmed up and its run times are measured
    before the first client's request.
    """

    name: str
    inputs: Sequence[tuple[str, str, Sequence[int]]]
    outputs: Sequence[tuple[str, str, Sequence[int]]]

    def infer(self, requests: list[Tensors]) -> list[Tensors]:
        """One answer for each request of a batch, in order."""

    def examples(self) -> Mapping[str, Sequence[Tensors]]:
        """At least one application with one request."""


@dataclass(frozen=True)
class ModelInfo:
    """What the server knows of a model, which only the workers import."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def metadata(self) -> dict[str, Any]:
        """As the Open Inference Protocol has it."""
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": "slurm_hadar",
            "inputs": [spec.metadata() for spec in self.inputs],
            "outputs": [spec.metadata() for spec in self.outputs],
        }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> ModelInfo:
        """From :meth:`metadata`."""
        both = (
            tuple(TensorSpec(s["name"], s["datatype"], tuple(s["shape"])) for s in found[side])
            for side in ("inputs", "outputs")
        )
        return cls(found["name"], *both)

    @classmethod
    def of(cls, model: ServedModel) -> ModelInfo:
        """Raises ConfigError where the model does not say what it must."""
        name = getattr(model, "name", None)
        if not isinstance(name, str) or not name or not name.isprintable() or "/" in name:
            raise ConfigError(f"a served model needs a name, a printable text without '/'; this one has {name!r}")
        for method in ("infer", "examples"):
            if not callable(getattr(model, method, None)):
                raise ConfigError(f"model {name} has no method {method}()")
        return cls(name, _specs(model, "inputs"), _specs(model, "outputs"))


def _specs(model: ServedModel, side: str) -> tuple[TensorSpec, ...]:
    try:
        found = tuple(TensorSpec(str(n), str(d), tuple(int(s) for s in shape)) for n, d, shape in getattr(model, side))
    except (AttributeError, TypeError, ValueError):
        found = ()
    if not found or len({spec.name for spec in found}) < len(found):
        raise ConfigError(f"model {model.name}: {side} must be (name, datatype, shape) of each tensor, named apart")
    for spec in found:
        if spec.datatype not in DATATYPES:
            raise ConfigError(f"model {model.name}: {spec.datatype!r} of {spec.name} is none of {', '.join(DATATYPES)}")
        if len(spec.shape) > _MOST_DIMENSIONS or any(length < -1 for length in spec.shape):
            raise ConfigError(f"model {model.name}: shape {spec.shape} of {spec.name}: at most 8 lengths, -1 for any")
    return found


def check_source(source: str) -> tuple[ModuleSpec, str]:
    """The file of ``FILE.py:build``, which can be read, and its function, which need not be there. Raises ConfigError
    for anything else."""
    file, _, function = source.rpartition(":")
    if not file or not function.isidentifier():
        raise ConfigError(f"{source!r} must read FILE.py:FUNCTION, as in models.py:build")
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is no Python file: its name must end in .py")
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    return spec, function


def load_models(source: str) -> list[ServedModel]:
    """What ``FILE.py:build`` builds. Raises ConfigError where it cannot."""
    spec, function = check_source(source)
    assert spec.loader is not None and spec.origin is not None
    path = Path(spec.origin)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
        built = getattr(module, function)()
    except Exception as error:  # the user's code, which may do anything
        raise ConfigError(f"{source} cannot be built: {reason_of(error)}") from error
    models: list[ServedModel] = list(built) if isinstance(built, list | tuple) else [built]
    if not models or len({ModelInfo.of(m).name for m in models}) < len(models):
        raise ConfigError(f"{source} must build at least one model, and name several apart")
    return models
