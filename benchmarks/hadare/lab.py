"""One training, forked or not, as plain processes on this machine: what quality is measured with.

The copies have the relative speeds that their family has on the five nodes of the mixes, by a pause after each step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hadare.families import DATA, FAMILIES, prepare
from slurm_hadar.throughput.table import reference

__all__ = ["ROOT", "TYPES", "Setting", "train"]

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("v100", "v100", "p100", "p100", "k80")
FASTEST_S = 0.015  # seconds that the fastest copy takes for a step, beside computing


@dataclass(frozen=True)
class Setting:
    """How to train: ``copies`` = 0 is one ordinary worker. ``period`` in steps of the whole job."""

    name: str
    copies: int = 5
    period: int = 340
    outer: float = 0.0
    momentum: float = 0.9
    optimizer_state: str = "average"
    lr_scale: float = 0.5


def train(family: str, steps: int, seed: int, setting: Setting) -> dict[str, Any]:
    """Train, and return the result with ``curve``: [(step, seconds, metric)]. Raises RuntimeError if a copy failed."""
    with tempfile.TemporaryDirectory(prefix="hadare-lab-") as folder:
        out = Path(folder)
        prepare(out)
        count = setting.copies or 1
        copies = [_start(family, steps, seed, setting, copy, out) for copy in range(count)]
        for copy, process in enumerate(copies):
            _, err = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{setting.name}: copy {copy} of {family}: {err.splitlines()[-1]}")
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
        lines = [json.loads(line) for path in out.glob("curve-*") for line in path.read_text().splitlines()]
        first = {line["step"]: line for line in sorted(lines, key=lambda x: -x["time"])}
        result["curve"] = [(s, first[s]["time"] - result["began"], first[s]["metric"]) for s in sorted(first)]
        return result


def _start(family: str, steps: int, seed: int, setting: Setting, copy: int, out: Path) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", DATA: str(out)}
    command = [
        sys.executable, "-m", "benchmarks.hadare.train", family, f"--steps={steps}", f"--seed={seed}",
        f"--out={out}/result.json", f"--curve={out}/curve-{copy}", f"--every={max(1, steps // 12)}",
        f"--pause={_pause_s(family, copy)}",
        "--converging",
    ]  # fmt: skip
    if setting.copies:
        env |= {"HADAR_FORK_DIR": str(out / "fork"), "HADAR_FORK_COPY": str(copy), "HADAR_PERIOD": str(setting.period)}
        command += [
            f"--outer={setting.outer}",
            f"--momentum={setting.momentum}",
            f"--lr-scale={setting.lr_scale}",
            f"--optimizer-state={setting.optimizer_state}",
        ]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def _pause_s(family: str, copy: int) -> float:
    """The slower the copy's GPU type, the longer."""
    kind, table = FAMILIES[family], reference()
    rates = [table.steps_per_s(kind.model, kind.batch, t) or 1.0 for t in TYPES]
    return FASTEST_S * max(rates) / rates[copy % len(TYPES)]
