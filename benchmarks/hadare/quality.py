"""What forking does to the trained model: validation at equal total steps, over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.hadare.families import FAMILIES
from benchmarks.hadare.lab import Setting, train

__all__ = ["SETTINGS", "STEPS", "measure"]

#: So many that one worker converges; cut off earlier, forked trainings are behind (docs/results/hadare.md).
STEPS = {"cnn": 8000, "translation": 5000, "lm": 6000, "recommender": 3000}
SETTINGS = (
    Setting("one worker", copies=0),
    Setting("five copies"),
    Setting("five copies, outer Nesterov", outer=0.7, momentum=0.5, lr_scale=0.0),
)
AT_ONCE = 3  # trainings; they are slow enough by their pauses not to be in each other's way


def measure(out: Path, seeds: int, families: tuple[str, ...], part: float, say: Callable[[str], None]) -> None:
    """Train everything that ``out`` does not have yet, ``part`` of the steps of each family; one file each. The outer
    optimizer is measured at full length only."""
    out.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS if part == 1.0 else SETTINGS[:2]
    wanted = [(f, seed, s) for s in settings for seed in range(seeds) for f in families or tuple(FAMILIES)]

    def one(family: str, seed: int, setting: Setting) -> None:
        steps = int(STEPS[family] * part)
        name = setting.name.replace(" ", "_").replace(",", "")
        path = out / f"quality-{family}-{steps}-{name}-{seed}.json"
        if path.exists():
            return
        result = train(family, steps, seed, setting)
        path.write_text(json.dumps({**result, "setting": asdict(setting)}) + "\n")
        say(f"{family}, {steps} steps, seed {seed}, {setting.name}: {result['metric']:.4f}")

    with ThreadPoolExecutor(AT_ONCE) as several:
        list(several.map(lambda w: one(*w), wanted))
