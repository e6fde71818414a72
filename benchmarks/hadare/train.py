"""The script of one job: trains a family for so many steps, and writes what became of it.

hadar-srun -- python -m benchmarks.hadare.train cnn --steps 2000 --seed 0 --out result.json
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click
import torch

import slurm_hadar
from benchmarks.hadare.families import CONVERGING, FAMILIES, Family


@click.command()
@click.argument("family", type=click.Choice(sorted(FAMILIES)))
@click.option("--steps", type=int, required=True)
@click.option("--seed", type=int, default=0)
@click.option("--converging", is_flag=True, help="The variant of the family that is trained until it converges.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--curve", type=click.Path(path_type=Path), help="JSON lines: validation at each consolidation.")
@click.option("--every", type=int, default=0, help="Validation every so many steps, where there are no consolidations.")
@click.option("--outer", type=float, default=0.0, help="Learning rate of the outer Nesterov optimizer; 0 = plain mean.")
@click.option("--momentum", type=float, default=0.9, help="Of the outer optimizer.")
@click.option("--lr-scale", type=float, default=0.5)
@click.option("--optimizer-state", type=click.Choice(["average", "local"]), default="average")
@click.option("--pause", type=float, default=0.0, help="Seconds added to each step: the speed of this copy.")
def main(
    family: str, steps: int, seed: int, converging: bool, out: Path, curve: Path | None, every: int, outer: float,
    momentum: float, optimizer_state: str, pause: float, lr_scale: float,
) -> None:  # fmt: skip
    """Train FAMILY."""
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # it warns of a prototype at each start
    kind = (CONVERGING if converging else FAMILIES)[family]
    data, held = kind.data()
    torch.manual_seed(seed)
    network = kind.network()
    optimizer = kind.optimizer(network)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    how = slurm_hadar.Consolidation(slurm_hadar.Outer(outer, momentum) if outer else None, optimizer_state, lr_scale)
    began = time.time()
    run = slurm_hadar.train(
        network, optimizer, total_steps=steps, loader=kind.loader(data), scheduler=schedule, consolidation=how
    )
    watch = Watch(kind, network, held, curve, every)
    for batch in run:
        watch.look(run)
        loss = kind.loss(network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if pause:
            time.sleep(pause)
    _refresh_statistics(kind, network, data)
    result = {"family": family, "seed": seed, "steps": run.step, "metric": watch.validate(), "began": began,
              "ended": time.time(), "job": os.environ.get("HADAR_JOB_ID")}  # fmt: skip
    out.write_text(json.dumps(result) + "\n")
    print(json.dumps(result), flush=True)


def _refresh_statistics(kind: Family, network: torch.nn.Module, data: torch.utils.data.Dataset[Any]) -> None:
    """Batch normalisation's running statistics anew, for the final weights: PyTorch's own recipe after averaging."""
    if kind.name == "cnn":
        torch.optim.swa_utils.update_bn((images for images, *_ in kind.loader(data)), network)


class Watch:
    """Validates now and then, with the weights as they are just after a consolidation."""

    def __init__(self, kind: Family, network: torch.nn.Module, held: Any, curve: Path | None, every: int) -> None:
        self._kind, self._network, self._held, self._every = kind, network, held, every
        self._file = curve.open("a", buffering=1) if curve else None
        self._seen = -1

    def validate(self) -> float:
        self._network.eval()
        with torch.no_grad():
            value = self._kind.metric(self._network, self._held).item()
        self._network.train()
        return value

    def look(self, run: Any) -> None:
        if self._file is None:
            return
        mark = getattr(run, "consolidation", None)
        mark = run.step // self._every if mark is None and self._every else mark
        if mark is None or mark == self._seen:
            return
        self._seen = mark
        line = {"step": run.step, "time": time.time(), "metric": self.validate(), "copy": getattr(run, "copy", None)}
        self._file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
