"""What a trial's process is told of its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar.tuning.trial.wire import Spec
from slurm_hadar.tuning.trial.worker import prepare


@pytest.mark.parametrize("world", [1, 2])
def test_one_process_alone_is_not_distributed(world: int, tmp_path: Path) -> None:
    """Libraries that see a rank look for the others."""
    spec = Spec("", "", "", 3, 1, "study.py", "objective", str(tmp_path), (1,) * world, "v100", world, 0)
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6", "RANK": "7", "SLURM_JOB_ID": "1"}
    prepare(environ, spec, 0, tmp_path)
    assert environ["CUDA_VISIBLE_DEVICES"].startswith("5") and "SLURM_JOB_ID" not in environ
    assert {name: environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == (
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        if world == 2
        else dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    )
