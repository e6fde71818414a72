"""What a user writes for a graph: the comment's value and the file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar import comment
from slurm_hadar.errors import CommentError, GraphError
from slurm_hadar.graphs.files import MOST_BYTES, graph_of, parse_graph, read_graph
from slurm_hadar.graphs.graph import JobGraph, Stage
from slurm_hadar.graphs.presets import preset_graph, presets

from .conftest import graphs

TEXT = """
micro_batches = 4
[[stage]]
compute_s = 0.1
parameter_bytes = 4e8
replicas = 2
activation_bytes = 1e7
[[stage]]
compute_s = 1
parameter_bytes = 200_000_000
width = 2
inside_bytes = 5e6
"""


def test_the_documentation() -> None:
    """The page's example can be read, and it lists the models there are, those with stages apart."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "graphs.md").read_text()
    example = re.search(r"```text\n(micro_batches.*?)```", page, re.DOTALL)[1]
    plain, layered = re.search(
        r"Known, data parallel only: (.*?); with any degree:\s(.*?)\. ", page, re.DOTALL
    ).groups()

    assert parse_graph(example).gpus == 8
    assert re.findall(r"`(.*?)`", plain) == [p.model for p in presets().values() if not p.layers]
    assert re.findall(r"`(.*?)`", layered) == [p.model for p in presets().values() if p.layers]


def test_a_file() -> None:
    """Defaults where nothing is said, whole numbers where fractions may stand."""
    assert parse_graph(TEXT) == JobGraph(
        (Stage(0.1, 4e8, 2, activation_bytes=1e7), Stage(1, 2e8, width=2, inside_bytes=5e6)), 4
    )


@given(graphs())
def test_round_trip(graph: JobGraph) -> None:
    """Every graph can be written down."""
    lines = [f"micro_batches = {graph.micro_batches}"]
    for s in graph.stages:
        lines += ["[[stage]]", *(f"{name} = {getattr(s, name)!r}" for name in s.__slots__)]

    assert parse_graph("\n".join(lines)) == graph


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stage = [", "g.toml: not valid TOML"),
        ("micro_batches = 2", r"g.toml: needs one \[\[stage\]\] table per stage"),
        ("stage = 3", r"g.toml: needs one \[\[stage\]\] table"),
        ("stage = []", "g.toml: a job graph needs at least one stage"),
        ("batches = 2", "g.toml: unknown key 'batches'; valid keys: micro_batches, stage"),
        ("[[stage]]\ncompute = 1", "g.toml: stage 1: unknown key 'compute'; valid keys: compute_s, parameter_bytes"),
        ("[[stage]]\ncompute_s = 1", "g.toml: stage 1 needs parameter_bytes"),
        ("[[stage]]\ncompute_s = '1'\nparameter_bytes = 1", "g.toml: stage 1: compute_s must be a number"),
        (f"[[stage]]\ncompute_s = 1{'0' * 400}\nparameter_bytes = 1", "g.toml: stage 1: compute_s must be a number"),
        ("[[stage]]\ncompute_s = nan\nparameter_bytes = 1", "g.toml: stage 1: compute_s must be a number"),
        ("[[stage]]\ncompute_s = 1\nparameter_bytes = inf", "g.toml: stage 1: parameter_bytes must be a number"),
        ("[[stage]]\ncompute_s = true\nparameter_bytes = 1", "g.toml: stage 1: compute_s must be a number"),
        ("[[stage]]\ncompute_s = 1\nparameter_bytes = 1\nreplicas = 2.0", "g.toml: stage 1: replicas must be a whole"),
        ("micro_batches = 0\n[[stage]]\ncompute_s = 1\nparameter_bytes = 1", "g.toml: micro_batches must be a whole"),
        ("[[stage]]\ncompute_s = 1\nparameter_bytes = 1\nactivation_bytes = 1", "g.toml: stage 1: activation_bytes"),
    ],
)
def test_faults_name_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    """One line that says where and what."""
    path = tmp_path / "g.toml"
    path.write_text(text)
    with pytest.raises(GraphError, match=message) as caught:
        read_graph(path)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, too large, no text, no file."""
    (tmp_path / "large.toml").write_text("#" * (MOST_BYTES + 1))
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name, message in (
        ("none.toml", "there is no such file"),
        ("large.toml", "is larger than 65536 bytes"),
        ("bytes.toml", "is not UTF-8 text"),
        ("", "is not a regular file"),
        ("pipe.toml", "is not a regular file"),
    ):
        with pytest.raises(GraphError, match=message):
            read_graph(tmp_path / name)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the reader fail in another way."""
    try:
        parse_graph(text)
    except GraphError as error:
        assert str(error).startswith("graph: ")


def test_models_with_degrees() -> None:
    """In any order; replicas follow from the job's GPUs where they are not stated."""
    assert graph_of("gpt2-xl/pp4/dp2/tp2/mb8") == preset_graph("gpt2-xl", 4, 2, 2, 8)
    assert graph_of("gpt2-xl/mb8/tp2/pp4", gpus=16) == preset_graph("gpt2-xl", 4, 2, 2, 8)
    assert graph_of("resnet50", gpus=6) == preset_graph("resnet50", dp=6)
    assert graph_of("resnet50").gpus == 1


def test_files_beside_the_job(tmp_path: Path) -> None:
    """A path is relative to the job's directory; its GPUs must be those of the job."""
    (tmp_path / "mine.toml").write_text(TEXT)

    assert graph_of("mine.toml", 4, tmp_path) == parse_graph(TEXT)
    with pytest.raises(GraphError, match=r"mine\.toml describes 4 GPUs, the job has 8"):
        graph_of("mine.toml", 8, tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("gpt2/pp3/tp2", "takes a multiple of 6 GPUs, the job has 8"),
        ("gpt2/pp2/dp2", "takes 4 GPUs, the job has 8"),
        ("gpt2/xx2", "'xx2' must be one of pp, dp, tp or mb with a number"),
        ("gpt2/pp2/pp4", "pp stands twice"),
        ("gpt3/pp2", "no graph is known for model 'gpt3'"),
    ],
)
def test_values_that_do_not_fit_the_job(value: str, message: str) -> None:
    """With the job's GPUs and what would be right."""
    with pytest.raises(GraphError, match=message):
        graph_of(value, gpus=8)


_PARTS = st.sampled_from([*presets(), "/", "/pp2", "/dp4", "/tp2", "/mb8", "/pp0", "pp", "x", ".toml", "9"])


@given(st.lists(_PARTS, min_size=1, max_size=5).map("".join))
def test_what_the_comment_lets_pass_is_read_here(value: str) -> None:
    """A value with wrong syntax is refused by both; one that passes fails here only for what it says."""
    try:
        passed = comment.parse(f"hadar:graph={value}").graph == value
    except CommentError:
        passed = False
    try:
        graph_of(value)
    except GraphError as error:
        assert not passed or not any(word in str(error) for word in ("must be one of pp", "stands twice"))
    else:
        assert passed
