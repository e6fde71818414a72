"""GPU models by their GRES names."""

from typing import Any

import pytest

from slurm_hadar.throughput.gpus import KNOWN, find, memory_gb


@pytest.mark.parametrize(
    ("gres", "model"),
    [
        ("v100", "v100"),
        ("tesla_v100-sxm2-32gb", "v100"),
        ("V100S", "v100"),
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("a100-sxm4-80gb", "a100"),
        ("nvidia_a10", "a10"),
        ("l40s", "l40s"),
        ("geforce_rtx_2080_ti", "rtx2080ti"),
        ("rtx_3090", "rtx3090"),
        ("nvidia_rtx_a6000", "a6000"),
        ("quadro_rtx_6000", "rtx6000"),
        ("nvidia_rtx_6000_ada_generation", "rtx6000ada"),
        ("h200", "h200"),
    ],
)
def test_gres_names_are_recognised(gres: str, model: str) -> None:
    """The names that sites and NVML give to a model lead to its figures."""
    found = find(gres)
    assert found.name == gres
    assert (found.tflops, found.bandwidth_gb_s) == (KNOWN[model].tflops, KNOWN[model].bandwidth_gb_s)


@pytest.mark.parametrize("gres", ["a100_1g.5gb", "nvidia_h100_80gb_hbm3_3g.40gb", "gpu", "", "fpga100"])
def test_others_are_not(gres: str) -> None:
    """A slice of a GPU or a name that only looks similar is not taken for the model."""
    assert find(gres) is None


def test_newer_generations_are_faster() -> None:
    """The figures rank the data-centre generations as everyone knows them."""
    rates = [KNOWN[n].tflops for n in ("k80", "p100", "v100", "a100", "h100")]
    assert rates == sorted(rates)


@pytest.mark.parametrize(
    ("gres", "gigabytes"),
    [
        ("v100", 16),
        ("tesla_v100-sxm2-32gb", 32),
        ("v100-32g", 32),
        ("K80", 12),
        ("nvidia_h100_80gb_hbm3", 80),
        ("nvidia_h100_80gb_hbm3_3g.40gb", 40),
        ("a100_1g.5gb", 5),
        ("a100-sxm4-80gb", 80),
        ("a100", 40),
        ("nvidia_rtx_6000_ada_generation", 48),
        ("nvidia_gh200_480gb", 96),  # of its CPU
        ("nvidia_gh200_144g_hbm3e", 144),
        ("gb200", None),
        ("fpga", None),
        ("", None),
        ("rtx4090gb", None),
        ("0gb", None),
    ],
)
def test_memory_by_name(gres: str, gigabytes: Any) -> None:
    """What the name says goes before what its model has at least; a slice has its own."""
    assert memory_gb(gres) == gigabytes


def test_every_known_model_has_its_memory() -> None:
    assert all(memory_gb(name) for name in KNOWN)
