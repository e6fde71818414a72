"""Graphs of known models: their sizes, and how they are cut up."""

from __future__ import annotations

import csv
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.presets import MICRO_BATCHES_PER_STAGE, preset_graph, presets
from slurm_hadar.throughput.table import reference

LAYERED = [p.model for p in presets().values() if p.layers]


@pytest.mark.parametrize("model", presets())
def test_every_preset_is_a_graph(model: str) -> None:
    """On any number of workers; its gradients are its parameters in fp32, its steps take a plausible time."""
    graph = preset_graph(model, dp=4)

    assert graph.gpus == 4 and graph.micro_batches == 1
    assert graph.stages[0].parameter_bytes == pytest.approx(4 * presets()[model].parameters)
    assert 1e-3 < graph.stages[0].compute_s < 10.0


def test_parameters_of_gpt2_follow_from_its_layers() -> None:
    """Layers, word and position embeddings, last norm: to the parameter."""
    for model in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        p = presets()[model]
        assert p.parameters == p.layers * p.layer_parameters() + (p.vocab + p.tokens + 2) * p.hidden


def test_measured_times_are_those_of_the_reference_table() -> None:
    """Where a step was measured, the throughput table has the same figure."""
    for p in presets().values():
        if p.step_s:
            assert p.step_s == pytest.approx(1.0 / reference().steps_per_s(p.model, p.batch, "v100"), rel=1e-4)


def test_computed_times_are_near_the_measured_ones() -> None:
    """ResNet-50 by its multiply-adds: within 2.5 times of what was measured with its input pipeline."""
    measured = 1.0 / reference().steps_per_s("resnet50", 64, "v100")

    assert measured / 2.5 < preset_graph("resnet50").stages[0].compute_s < measured * 1.2


@given(st.sampled_from(LAYERED), st.integers(1, 12), st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_cutting_up_loses_nothing(model: str, pp: int, dp: int, tp: int) -> None:
    """All parameters and all compute are in the stages, but for the copy of the output's weights at the last one."""
    whole, graph, p = preset_graph(model), preset_graph(model, pp, dp, tp), presets()[model]
    copy = 4 * p.vocab * p.hidden if pp > 1 else 0

    assert graph.gpus == pp * dp * tp
    assert graph.micro_batches == (MICRO_BATCHES_PER_STAGE * pp if pp > 1 else 1)
    assert sum(s.parameter_bytes for s in graph.stages) == pytest.approx(4 * p.parameters + copy)
    assert tp * sum(s.compute_s for s in graph.stages) == pytest.approx(whole.stages[0].compute_s)
    assert all(s.activation_bytes == dp * p.activation_bytes() for s in graph.stages[:-1])
    assert all((s.inside_bytes > 0) == (tp > 1) for s in graph.stages)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet51",), "no graph is known for model 'resnet51'; known: resnet18, resnet50"),
        (("resnet50", 2), r"data parallel only \(pp1, tp1\); with stages: bert-base"),
        (("gpt2", 13), "has 12 layers: pp must be 1 to 12, not 13"),
        (("gpt2-xl", 1, 1, 7), "tp must divide its width 1600"),
    ],
)
def test_impossible_cuts_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    """With the reason, and what would be possible."""
    with pytest.raises(GraphError, match=message):
        preset_graph(*arguments)


def test_every_row_names_its_source() -> None:
    """And every source is explained at the top of the table."""
    lines = (resources.files("slurm_hadar.graphs") / "presets.csv").read_text().splitlines()
    head = " ".join(line for line in lines if line.startswith("#"))

    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        assert f"{row['source']} =" in head
