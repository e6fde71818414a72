"""Training scripts in many people's habits (``tests/scripts``), each stopped twice in its midst and resumed. That a
controller moves them is tested there."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
HABITS = (
    "accelerate_loop", "accumulation", "amp_scaler", "channels_last", "compiled", "critic", "ema",
    "epoch_function", "epoch_loop", "forgets_ema", "gan", "iterable_workers", "lbfgs", "persistent_workers",
    "plain_loop", "replay_memory", "several_optimizers", "zipped_loaders",
)  # fmt: skip
#: Runs a script as it is, and tells it to end, as ``scontrol requeue`` does, after so many steps of its optimizers.
STOPPED = """
import os, runpy, signal, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
path, out, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
made = []
def count(*_):
    made.append(1)
    if len(made) == last: os.kill(os.getpid(), signal.SIGTERM)
register_optimizer_step_post_hook(count)
sys.argv[:] = [path, "--out=" + out]
runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.parametrize("habit", HABITS)
def test_stopped_and_resumed_it_ends_with_the_weights_of_the_undisturbed_run(
    habit: str, tmp_path: Path, job_env: dict[str, str], start_script: Callable[..., Any]
) -> None:
    """Bit by bit; and what is not saved is told of before it is lost, and nothing else."""
    dice = random.Random(habit)

    def run(name: str, restart: int, stop: int) -> tuple[int, str]:
        env = {**job_env, "SLURM_RESTART_COUNT": str(restart), "HADAR_JOB_DIR": f"{job_env['HADAR_JOB_DIR']}-{name}"}
        script = start_script(STOPPED, env, str(SCRIPTS / f"{habit}.py"), str(tmp_path / name), str(stop))
        said = script.communicate(300)[1]
        return script.returncode, said

    code, said = run("undisturbed", 0, 0)
    assert code == 0 and ("WARNING" in said) == (habit == "forgets_ema"), said
    said = ""
    for restart in range(2):
        code, more = run("stopped", restart, dice.randint(5, 40))
        said += more
        assert code == -signal.SIGTERM, said
    code, more = run("stopped", 2, 0)
    assert code == 0 and (said + more).count("hadar: resumed from gen-") == 2, said + more
    assert ("AveragedModel" in said) == ("WARNING" in said + more) == (habit == "forgets_ema"), said + more
    expected, found = (torch.load(tmp_path / name) for name in ("undisturbed", "stopped"))
    assert _flat(found) == _flat(expected)


def _flat(tree: Any) -> list[Any]:
    """Its leaves, tensors by their type and bytes."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in (key, *_flat(tree[key]))]
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in _flat(part)]
    if isinstance(tree, torch.Tensor):
        return [str(tree.dtype), tuple(tree.shape), tree.detach().contiguous().numpy().tobytes()]
    return [tree]
