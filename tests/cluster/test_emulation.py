"""The speeds that the private cluster's GPUs pretend to have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_hadar.cluster import emulation, parse_nodes
from slurm_hadar.throughput.table import read_table, reference

_TABLE = """model,batch,gpus,gpu_type,placement,steps_per_s,source
m,8,1,k80,one_node,5,s
m,8,1,v100,one_node,50,s
m,8,2,v100,one_node,80,s
m,8,2,v100,spread,90,s
m,8,4,v100,one_node,25,s
m,8,4,v100,spread,40,s
m,8,2,k80,one_node,4,s
m,8,2,k80,spread,1,s
other,,1,k80,one_node,3,s
other,,1,v100,one_node,6,s
""".splitlines()


def test_fastest_single_gpu_rate_is_scaled_and_gangs_are_clamped() -> None:
    """One factor per workload; a gang is no faster than one GPU, nor a spread gang than one on a node."""
    found = emulation.speeds(read_table(_TABLE), 20.0)

    assert found["m:8"]["v100"] == {
        "1": {"one_node": 20.0},
        "2": {"one_node": 20.0, "spread": 20.0},
        "4": {"one_node": 10.0, "spread": 10.0},
    }
    assert found["m:8"]["k80"] == {"1": {"one_node": 2.0}, "2": {"one_node": 1.6, "spread": 0.4}}
    assert found["other"]["k80"] == {"1": {"one_node": 10.0}}


def test_default_factors_are_medians_relative_to_the_fastest() -> None:
    """Unknown types count as the fastest: nothing is known that would slow them."""
    factors = emulation.default_factors(read_table(_TABLE), ("v100", "k80", "h100"))

    assert factors == {"v100": 1.0, "k80": pytest.approx((0.1 + 0.5) / 2), "h100": 1.0}


def test_reference_table_obeys_the_rules_everywhere() -> None:
    """On the shipped table: fastest is as asked, no gang beats one GPU, spread never beats one node."""
    for by_type in emulation.speeds(reference(), 100.0).values():
        assert max(rates["1"]["one_node"] for rates in by_type.values()) == pytest.approx(100.0)
        for rates in by_type.values():
            for rate in rates.values():
                assert 0 < rate["one_node"] <= rates["1"]["one_node"]
                assert 0 < rate.get("spread", rate["one_node"]) <= rate["one_node"]


def test_file_names_cluster_nodes_and_only_their_types(tmp_path: Path) -> None:
    """The file holds what a job needs to recognise its cluster and find its speed."""
    emulation.write(tmp_path, "hadar_x", parse_nodes("v100:1x4,h100:1x2"), 20.0, read_table(_TABLE))

    content = json.loads((tmp_path / "hadar-cluster.json").read_text())

    assert content["version"] == 1 and content["cluster"] == "hadar_x"
    assert content["nodes"] == {"v100-1": {"v100": 4}, "h100-1": {"h100": 2}}
    assert set(content["speeds"]["m:8"]) == {"v100"}
    assert content["default"] == {"v100": 1.0, "h100": 1.0}
