"""What a save costs the training: the loop's standstill with the write in the background, against waiting for it.

    python -m benchmarks.costs.checkpoint [--megabytes 96] [--saves 5] [--directory DIR]

A multilayer perceptron under Adam whose state (weights and two moments) is of the given size goes through the training
API and saves every 8 steps, once with ``async_save=True`` and once without. Standstill and time until safe are those
that the training reports to its agent. Steps are timed as well: ``slowdown`` is the median step while a checkpoint is
being written, over the median step otherwise. Prints one JSON object; ``ratio`` is standstill async over sync.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

EVERY_STEPS = 8


def model(megabytes: float) -> Any:
    """Equal square layers with weights, and Adam's two moments of each, of ``megabytes`` in all."""
    import torch

    width, layers = 1024, max(1, round(megabytes * 2**20 / (3 * 4 * 1024 * 1025)))
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def measure(megabytes: float, saves: int, background: bool, directory: Path) -> dict[str, list[float]]:
    """Standstill and duration of each save but the first (which makes the buffers), and the steps' lengths."""
    import torch

    import slurm_hadar
    from slurm_hadar.runtime.inject import _hadar_progress as shared

    torch.manual_seed(0)
    net = model(megabytes)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(8, 1024)
    total = EVERY_STEPS * (saves + 1)
    run = slurm_hadar.train(
        net,
        optimizer,
        total_steps=total,
        save_every_s=None,
        save_every_steps=EVERY_STEPS,
        async_save=background,
        directory=directory,
    )
    page = shared.open_page(0, 1)
    assert page is not None
    found: dict[str, list[float]] = {"stall_s": [], "save_s": [], "busy": [], "free": []}
    seen = 1
    for _ in run:
        writing = bool(list(directory.glob(".tmp-*")))
        began = time.perf_counter()
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        found["busy" if writing else "free"].append(time.perf_counter() - began)
        if page.words[shared.SAVES] > seen:
            seen = page.words[shared.SAVES]
            found["stall_s"].append(page.seconds[shared.STALL_S])
            found["save_s"].append(page.seconds[shared.SAVE_S])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=96.0, help="of weights and optimizer state together")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument(
        "--directory", type=Path, default=None, help="where to write (default: the temporary directory)"
    )
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(dir=args.directory) as place:
        os.environ["HADAR_RUN_DIR"] = place
        for name, background in (("sync", False), ("async", True)):
            results[name] = measure(args.megabytes, args.saves, background, Path(place) / name)
    stall = {name: statistics.median(found["stall_s"]) for name, found in results.items()}
    beside = results["async"]
    print(
        json.dumps(
            {
                "megabytes": args.megabytes,
                "saves": args.saves,
                "stall_sync_s": round(stall["sync"], 4),
                "stall_async_s": round(stall["async"], 4),
                "ratio": round(stall["async"] / stall["sync"], 4),
                "save_async_s": round(statistics.median(beside["save_s"]), 4),
                "step_s": round(statistics.median(beside["free"]), 4),
                "slowdown": round(statistics.median(beside["busy"]) / statistics.median(beside["free"]), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
