"""Optuna with a process for each GPU, and Ray Tune: as they are, on the same emulated GPUs.

    python -m benchmarks.tuning.real.others optuna|ray ALGORITHM SEED TRIALS TARGET

prints, at the end, a line of JSON: seconds until the target (from the first process), and the best error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GPUS = ("fast",) * 4 + ("slow",) * 4


def by_optuna(algorithm: str, trials: int, target: float) -> dict[str, Any]:
    """``study.optimize`` in eight processes on one SQLite file, which is how Optuna documents it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = f"sqlite:///{tempfile.mkdtemp()}/study.db"
    study = optuna.create_study(storage=url, study_name="s")
    began = time.time()
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tuning.real.others", "worker", algorithm, url, str(trials)],
            env={**os.environ, "HADAR_GPU_TYPE": kind, "OMP_NUM_THREADS": "1"},
        )
        for kind in GPUS
    ]
    took_s, best = None, 1.0
    while any(w.poll() is None for w in workers) and took_s is None:
        time.sleep(0.2)
        best = min([v for t in study.get_trials(deepcopy=False) for v in t.intermediate_values.values()] or [1.0])
        if best <= target:
            took_s = time.time() - began
    for worker in workers:
        worker.kill()
    return {"target_s": took_s, "ran_s": time.time() - began, "best": best}


def worker(algorithm: str, url: str, trials: int) -> None:
    import optuna

    from benchmarks.tuning.real.study import objective
    from benchmarks.tuning.real.workload import REPORTS

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: Any = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    if algorithm == "sha":
        pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=REPORTS, reduction_factor=3)
    study = optuna.load_study(study_name="s", storage=url, pruner=pruner)
    finished = optuna.study.MaxTrialsCallback(trials, states=None)
    study.optimize(objective, callbacks=[finished])


def by_ray(algorithm: str, seed: int, trials: int, target: float) -> dict[str, Any]:
    """Ray Tune's schedulers, one GPU for each trial."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler

    from benchmarks.tuning.real.workload import REPORTS

    ray.init(num_cpus=64, num_gpus=len(GPUS), include_dashboard=False, log_to_driver=False, configure_logging=False)
    scheduler: Any = ASHAScheduler(max_t=REPORTS, grace_period=1, reduction_factor=3)
    if algorithm == "sha":
        scheduler = HyperBandScheduler(max_t=REPORTS, reduction_factor=3)
    found: dict[str, float] = {"best": 1.0}
    began = time.time()

    class Stop(tune.Stopper):  # type: ignore[misc]
        def __call__(self, _trial: str, result: dict[str, Any]) -> bool:
            found["best"] = min(found["best"], result["error"])
            if result["error"] <= target:
                found.setdefault("target_s", time.time() - began)
            return False

        def stop_all(self) -> bool:
            return "target_s" in found

    tuner = tune.Tuner(
        tune.with_resources(ray_trial, {"cpu": 1, "gpu": 1}),
        param_space={"number": tune.grid_search(list(range(trials))), "seed": seed},
        tune_config=tune.TuneConfig(metric="error", mode="min", scheduler=scheduler),
        run_config=tune.RunConfig(stop=Stop(), verbose=0, storage_path=tempfile.mkdtemp()),
    )
    tuner.fit()
    ran_s = time.time() - began
    ray.shutdown()
    return {"target_s": found.get("target_s"), "ran_s": ran_s, "best": found["best"]}


def ray_trial(config: dict[str, Any]) -> None:
    """The same training, with Ray's checkpoints."""
    import ray
    import torch
    from ray import tune
    from torch import nn
    from torch.utils.data import DataLoader

    from benchmarks.tuning.real.study import SPEEDS
    from benchmarks.tuning.real.workload import BATCH, REPORTS, STEPS, Device, data, draw, error, network

    drawn = draw(config["seed"], config["number"])
    device = Device(SPEEDS[GPUS[int(ray.get_gpu_ids()[0])]])
    trained, judged = data()
    model = network(drawn)
    optimizer = torch.optim.SGD(model.parameters(), lr=drawn["lr"], momentum=drawn["momentum"])
    first, before = 0, tune.get_checkpoint()
    if before is not None:
        with before.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["report"]
    loader = DataLoader(trained, batch_size=BATCH, shuffle=True, drop_last=True)
    batches = iter(loader)
    for report in range(first, REPORTS):
        for _ in range(STEPS):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)
            with device.step():
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        device.note()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "report": report + 1}
            torch.save(state, Path(folder) / "state.pt")
            tune.report({"error": error(model, judged)}, checkpoint=tune.Checkpoint.from_directory(folder))


def main(words: list[str]) -> None:
    if words[0] == "worker":
        worker(words[1], words[2], int(words[3]))
        return
    kind, algorithm, seed, trials, target = words[0], words[1], int(words[2]), int(words[3]), float(words[4])
    if kind == "optuna":
        print(json.dumps(by_optuna(algorithm, trials, target)))
    else:
        print(json.dumps(by_ray(algorithm, seed, trials, target)))


if __name__ == "__main__":
    main(sys.argv[1:])
