"""Graphs of common models, from their public sizes: ``presets.csv`` has the figures and their sources.

How a model is cut up is our definition. Layers are dealt evenly to the stages of a pipeline, the first ones get what is
left over; the embedding is with the first stage, the output with the last, which holds a copy of the tied weights.
Tensor parallelism divides the time of a stage by its width and adds its own all-reduces: four per layer and micro-batch
over that layer's activations (Megatron-LM, arXiv 1909.08053).
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.graph import JobGraph, Stage

__all__ = ["MICRO_BATCHES_PER_STAGE", "Preset", "preset_graph", "presets"]

_SUSTAINED_FLOPS = 11e12  # of a V100 in fp32: see presets.csv
_FLOP_PER_MAC = 6.0  # forward and backward
_BYTES = 4.0
#: Where a pipeline's micro-batches are not stated: as many per stage, so that filling it costs a fifth of the time.
MICRO_BATCHES_PER_STAGE = 4


@dataclass(frozen=True, slots=True)
class Preset:
    """A row of ``presets.csv``; ``layers`` is 0 where the model cannot be cut into stages."""

    model: str
    parameters: int
    batch: int
    gmacs: float
    step_s: float
    layers: int
    hidden: int
    tokens: int
    vocab: int
    source: str

    def layer_parameters(self) -> int:
        """Weights and biases of one layer of a transformer: attention, feed-forward of four times the width, norms."""
        return 12 * self.hidden**2 + 13 * self.hidden

    def layer_macs(self) -> float:
        """Multiply-adds of one layer, forward, for a micro-batch."""
        return self.batch * self.tokens * (12.0 * self.hidden**2 + 2.0 * self.tokens * self.hidden)

    def output_macs(self) -> float:
        """Multiply-adds of the output over the vocabulary, forward, for a micro-batch."""
        return float(self.batch * self.tokens * self.hidden * self.vocab)

    def activation_bytes(self) -> float:
        """Bytes that one replica hands from layer to layer for a micro-batch."""
        return _BYTES * self.batch * self.tokens * self.hidden


@functools.cache
def presets() -> Mapping[str, Preset]:
    """All known models by name."""
    text = (resources.files("slurm_hadar.graphs") / "presets.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["model"]: _preset(row) for row in rows}


def _preset(row: Mapping[str, str]) -> Preset:
    counts = {name: int(row[name] or 0) for name in ("parameters", "batch", "layers", "hidden", "tokens", "vocab")}
    figures = {name: float(row[name] or 0) for name in ("gmacs", "step_s")}
    return Preset(model=row["model"], source=row["source"], **counts, **figures)  # type: ignore[arg-type]


def preset_graph(model: str, pp: int = 1, dp: int = 1, tp: int = 1, mb: int | None = None) -> JobGraph:
    """The graph of ``model`` with ``pp`` pipeline stages of ``dp`` replicas on ``tp`` GPUs each.

    ``mb``: micro-batches of an iteration; default 1 without a pipeline, else four per stage. Raises GraphError for a
    model that is not known or cannot be cut up like that.
    """
    known = presets().get(model)
    if known is None:
        raise GraphError(f"no graph is known for model {model!r}; known: {', '.join(presets())}; or give a .toml file")
    mb = mb or (1 if pp == 1 else MICRO_BATCHES_PER_STAGE * pp)
    if known.layers:
        _check_cut(known, pp, tp)
        return JobGraph(tuple(_stages(known, pp, dp, tp)), mb)
    if pp > 1 or tp > 1:
        able = ", ".join(p.model for p in presets().values() if p.layers)
        raise GraphError(f"model {model} is known as data parallel only (pp1, tp1); with stages: {able}")
    seconds = known.step_s or _seconds(known.gmacs * 1e9 * known.batch)
    return JobGraph((Stage(seconds, _BYTES * known.parameters, dp),), mb)


def _check_cut(known: Preset, pp: int, tp: int) -> None:
    if not 1 <= pp <= known.layers:
        raise GraphError(f"model {known.model} has {known.layers} layers: pp must be 1 to {known.layers}, not {pp}")
    if tp < 1 or known.hidden % tp:
        raise GraphError(f"model {known.model}: tp must divide its width {known.hidden}, {tp} does not")


def _seconds(macs: float) -> float:
    return _FLOP_PER_MAC * macs / _SUSTAINED_FLOPS


def _stages(known: Preset, pp: int, dp: int, tp: int) -> list[Stage]:
    outside_layers = known.parameters - known.layers * known.layer_parameters()
    stages = []
    for i in range(pp):
        first, last = i == 0, i == pp - 1
        layers = known.layers // pp + (i < known.layers % pp)
        parameters = layers * known.layer_parameters() + (outside_layers if first else 0)
        parameters += known.vocab * known.hidden if last and not first else 0
        macs = layers * known.layer_macs() + (known.output_macs() if last else 0.0)
        stages.append(
            Stage(
                compute_s=_seconds(macs) / tp,
                parameter_bytes=_BYTES * parameters,
                replicas=dp,
                width=tp,
                activation_bytes=0.0 if last else dp * known.activation_bytes(),
                inside_bytes=4 * layers * 2 * (tp - 1) / tp * known.activation_bytes(),
            )
        )
    return stages
