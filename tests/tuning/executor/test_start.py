"""What the executor begins with: the GPUs, and what the objective's file imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.tuning.executor.launch import imports_of
from slurm_hadar.tuning.executor.site import sites_here


def test_slots_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert sites_here("3", {}).count == 3
    assert [site.gpus for site in sites_here("a:2,b:1", {}).sites] == [(0, 1), (2,)]
    for wanted in (None, "0", "a"):
        with pytest.raises(ConfigError):
            sites_here(wanted, {})
    with pytest.raises(ConfigError, match="--gpus 5000 must be a whole number from 1 to 4096"):
        sites_here("5000", {})


def test_imports_are_read_not_made(tmp_path: Path) -> None:
    file = tmp_path / "study.py"
    file.write_text("import torch.nn, os\ndef f():\n    from slurm_hadar import sharing\n    from . import x\n")
    assert imports_of(file) == {"torch", "os", "slurm_hadar"}
    file.write_text("def f(:")
    with pytest.raises(ConfigError):
        imports_of(file)


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [("tesla-v100", (0, 2)), ("a100", (1,))]),
        ("2,1", [("tesla-v100", (0,)), ("a100", (1,))]),
        ("GPU-cc, GPU-bbbb", [("tesla-v100", (0,)), ("a100", (1,))]),
        ("1,7,0", [("a100", (0,))]),  # as for CUDA, what follows one that is not there is not to be seen
    ],
)
def test_gpus_of_this_machine_are_those_that_are_to_be_seen(
    visible: str | None, found: list[tuple[str, tuple[int, ...]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number or by UUID; a trial's are counted in the order in which they stand there."""
    smi = tmp_path / "nvidia-smi"
    rows = "NVIDIA Tesla V100, GPU-aaaa\\nNVIDIA A100, GPU-bbbb\\nNVIDIA Tesla V100, GPU-cccc\\n"
    smi.write_text(f"#!/bin/sh\ncase $1 in *uuid*) printf '{rows}';; *) printf '{rows}' | cut -d, -f1;; esac\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    sites = sites_here(None, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    assert [(site.gpu_type, site.gpus) for site in sites.sites] == found
