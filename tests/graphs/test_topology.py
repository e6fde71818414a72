"""Clusters as links, and Slurm's text about switches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.topology import INSIDE_BYTES_S, OUTSIDE_BYTES_S, Group, Topology, parse_switches

CONF = """
# two leaves
SwitchName=s0 Nodes=tux[0-3]
switchname=s1 nodes=tux[4,07-08],big LinkSpeed=100   # a longer name
SwitchName=s2 \\
    Switches=s[0-1]
"""
SCONTROL = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-3]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=tux[4,07-08],big
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=tux[0-4,07-08],big Switches=s[0-1]
"""
LOW = ("tux0", "tux1", "tux2", "tux3")
HIGH = ("tux4", "tux07", "tux08", "big")


@pytest.mark.parametrize("text", [CONF, SCONTROL])
def test_file_and_command_say_the_same(text: str) -> None:
    """topology.conf names children, scontrol also all nodes below: both give the nodes below each switch."""
    switches = parse_switches(text)

    assert switches["s0"] == LOW and switches["s1"] == HIGH
    assert set(switches["s2"]) == {*LOW, *HIGH} and len(switches["s2"]) == 8


def test_names_with_several_brackets() -> None:
    """They multiply, and keep their zeros."""
    assert parse_switches("SwitchName=a Nodes=r[1-2]n[08-10]x")["a"] == (
        "r1n08x",
        "r1n09x",
        "r1n10x",
        "r2n08x",
        "r2n09x",
        "r2n10x",
    )
    assert parse_switches("SwitchName=a Nodes=(null)\n\n") == {"a": ()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Nodes=n[1-", r"topology line 1: the brackets of n\[1- do not match"),
        ("\nSwitchName=a Nodes=n[3-1]", r"topology line 2: \[3-1\] is not a list"),
        ("SwitchName=a Nodes=n[0-999999999]", r"topology line 1"),
        ("SwitchName=a Nodes=n[0-9999]x[0-9999]", "topology line 1: more than"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "topology line 2: switch a stands twice"),
        ("SwitchName=a Switches=b", "switch a names a switch b that is not described"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "is below itself"),
        ("BlockName=b1 Nodes=n[1-4]", "blocks are not understood"),
        ("Nodes=n1", "topology line 1: must begin with SwitchName="),
    ],
)
def test_broken_text_is_refused_by_line(text: str, message: str) -> None:
    """The error names the line or the switch."""
    with pytest.raises(GraphError, match=message):
        parse_switches(text)


@given(st.text(alphabet="SwitchName=odes[]-,0123 \n#ab\\", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the parser fail in another way."""
    try:
        parse_switches("SwitchName=s Nodes=" + text)
    except GraphError as error:
        assert str(error).startswith("topology")


def test_defaults_and_bandwidths_by_name() -> None:
    """Bandwidths are one figure for all or figures by name; the rest have the defaults."""
    topology = Topology.of({"a": 4, "b": 8}, outside={"b": 3e9})

    assert topology.inside == (INSIDE_BYTES_S, INSIDE_BYTES_S)
    assert topology.outside == (OUTSIDE_BYTES_S, 3e9)
    assert Topology.of([4, 8]).names == ("0", "1")


def test_switches_become_groups() -> None:
    """Small ones first; the root and nodes that are no servers are left out; uplinks as stated or by the NICs."""
    topology = Topology.of(dict.fromkeys((*LOW, "big"), 4), outside=1e9)

    found = topology.with_switches(parse_switches(CONF), oversubscription=2.0, uplinks={"s1": 7e8})

    assert found.groups == (Group((4,), 7e8), Group((0, 1, 2, 3), 2e9))


def test_names_do_not_make_topologies_differ() -> None:
    """What is remembered of one holds for another with the same servers."""
    assert Topology.of({"a": 4}) == Topology.of({"b": 4})
    assert hash(Topology.of({"a": 4})) == hash(Topology.of({"b": 4}))
    assert Topology.of([4]) != Topology.of([5])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology.of([]), "at least one server"),
        (lambda: Topology.of({"n1": -1}), "server n1: the number of GPUs must be at least 0, not -1"),
        (lambda: Topology.of([4], outside=0.0), "bandwidths must be positive"),
        (lambda: Topology((4,), (1.0, 2.0), (1.0,)), "both bandwidths"),
        (lambda: Topology((4,), (1.0,), (1.0,), (Group((0, 1), 1.0),)), "a switch needs servers"),
        (lambda: Topology.of([4]).with_switches({}, oversubscription=0.5), "oversubscription"),
        (lambda: Topology.of([4]).with_switches({"a": []}, uplinks={"b": 1.0}), "unknown switch 'b'; switches: a"),
    ],
)
def test_impossible_topologies_are_refused(make: Any, message: str) -> None:
    """In one line that names the server or the switch."""
    with pytest.raises(GraphError, match=message):
        make()
