"""What a private cluster may look like, and what is refused."""

from __future__ import annotations

import pytest

from slurm_hadar.cluster import ClusterSpec, parse_nodes
from slurm_hadar.errors import ClusterError


def test_nodes_are_named_and_numbered_by_type() -> None:
    """Nodes are numbered per type, also when a type is listed twice or shares a node."""
    nodes = parse_nodes("v100:2x4, k80:1x8,v100:1x2,v100+k80:1x2")

    assert [(n.name, dict(n.gpus)) for n in nodes] == [
        ("v100-1", {"v100": 4}),
        ("v100-2", {"v100": 4}),
        ("k80-1", {"k80": 8}),
        ("v100-3", {"v100": 2}),
        ("v100-k80-1", {"v100": 2, "k80": 2}),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be type:nodesxGPUs"),
        ("v100", "must be type:nodesxGPUs"),
        ("v100:2", "must be type:nodesxGPUs"),
        ("v100:2x", "must be type:nodesxGPUs"),
        ("v100:-1x4", "must be type:nodesxGPUs"),
        ("v100:2x4,", "must be type:nodesxGPUs"),
        ("v100:0x4", "at least one node"),
        ("v100:2x0", "at least one node"),
        ("V100:2x4", "must be lower-case"),
        ("1g:2x4", "must be lower-case"),
        ("v 100:2x4", "must be lower-case"),
        ("v100+:2x4", "must be lower-case"),
        ("v100+v100:2x4", "stands twice"),
        ("v100:1x65", "at most"),
        ("v100:501x1", "at most"),
        ("v100:400x1,k80:400x1", "at most"),
        ("v100:" + "9" * 30 + "x4", "at most"),
    ],
)
def test_malformed_nodes_are_refused_in_one_line(text: str, reason: str) -> None:
    """The message names the group and what would be right."""
    with pytest.raises(ClusterError, match=reason) as refused:
        parse_nodes(text)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "options", [{"name": "Ä"}, {"name": ""}, {"name": "../x"}, {"fastest_steps_per_s": 0.0}, {"kill_wait_s": 0}]
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    """Names that could leave the state folder, and senseless numbers."""
    with pytest.raises(ClusterError):
        ClusterSpec(**options)
