"""The network's links, as the controller writes them down for the nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.network import Links, Network

links = st.builds(Links, st.none() | st.floats(1, 1e15), st.none() | st.floats(1, 1e15))
names = st.dictionaries(st.text(max_size=8), links, max_size=3)


@given(st.floats(1, 1e15), names, names, st.floats(1, 64), st.dictionaries(st.text(max_size=8), st.floats(1, 1e15)))
def test_a_network_is_read_back(inside: float, types: Any, nodes: Any, oversubscription: float, uplinks: Any) -> None:
    made = Network(inside, 1e9, types, nodes, oversubscription, uplinks)
    assert Network.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "speed": 3, "types": {}, "nodes": {}}']
)
def test_a_broken_network_is_one_line(text: str) -> None:
    with pytest.raises(GraphError, match=r"hadar-network.json cannot be used .*; start the controller again"):
        Network.from_json(text)
