"""Optuna with a process for each GPU, and Ray Tune: as they are, on the same emulated GPUs.

    python -m benchmarks.tuning.real.others optuna|ray ALGORITHM SEED TRIALS TARGET [whole]

prints, at the end, a line of JSON: what was seen (:mod:`benchmarks.tuning.real.seen`), counted from the first process.
It ends at the target, or ``whole`` when all trials are over.
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

from benchmarks.tuning.real.device import GPUS
from benchmarks.tuning.real.seen import Seen

PERTURBED_EVERY = 3  # reports, of population based training


def by_optuna(algorithm: str, seed: int, trials: int, target: float, whole: bool) -> dict[str, Any]:
    """``study.optimize`` in eight processes on one SQLite file, which is how Optuna documents it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = f"sqlite:///{tempfile.mkdtemp()}/study.db"
    study = optuna.create_study(storage=url, study_name="s")
    began = time.time()
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tuning.real.others", "worker", algorithm, str(seed * 100 + number), url,
             str(trials)],
            env={**os.environ, "HADAR_GPU_TYPE": kind, "OMP_NUM_THREADS": "1"},
        )
        for number, kind in enumerate(GPUS)
    ]  # fmt: skip
    seen, run = Seen(target), True
    while run:
        time.sleep(0.2)
        run = any(w.poll() is None for w in workers)  # what they have said last is looked at, too
        for trial in study.get_trials(deepcopy=False):
            for report, error in trial.intermediate_values.items():
                seen.error(error, report, time.time() - began)
        run &= whole or not seen.reached
    for worker in workers:
        worker.kill()
    return seen.result(time.time() - began)


def worker(algorithm: str, seed: int, url: str, trials: int) -> None:
    import optuna

    from benchmarks.tuning.real.study import objective
    from benchmarks.tuning.real.tasks import REPORTS

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: Any = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    if algorithm in ("sha", "hyperband", "tpe-hyperband"):
        pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=REPORTS, reduction_factor=3)
    sampler: Any = optuna.samplers.RandomSampler(seed=seed)
    if algorithm == "tpe-hyperband":
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.load_study(study_name="s", storage=url, pruner=pruner, sampler=sampler)
    finished = optuna.study.MaxTrialsCallback(trials, states=None)
    study.optimize(objective, callbacks=[finished])


def by_ray(algorithm: str, seed: int, trials: int, target: float, whole: bool) -> dict[str, Any]:
    """Ray Tune's schedulers, one GPU for each trial."""
    import ray
    from ray import tune

    ray.init(num_cpus=64, num_gpus=len(GPUS), include_dashboard=False, log_to_driver=False, configure_logging=False)
    seen = Seen(target)
    began = time.time()

    class Stop(tune.Stopper):  # type: ignore[misc,unused-ignore]  # Ray is there or not
        def __call__(self, _trial: str, result: dict[str, Any]) -> bool:
            seen.error(result["error"], result["report"], time.time() - began)
            return False

        def stop_all(self) -> bool:
            return seen.reached and not whole

    space, config = _ray_search(algorithm, seed, trials)
    tuner = tune.Tuner(
        tune.with_resources(ray_trial, {"cpu": 1, "gpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(metric="error", mode="min", **config),
        run_config=tune.RunConfig(stop=Stop(), verbose=0, storage_path=tempfile.mkdtemp()),
    )
    tuner.fit()
    ran_s = time.time() - began
    ray.shutdown()
    return seen.result(ran_s)


def _ray_search(algorithm: str, seed: int, trials: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The search space, and who searches it."""
    from ray import tune
    from ray.tune import schedulers
    from ray.tune.search.optuna import OptunaSearch

    from benchmarks.tuning.real.tasks import REPORTS, Range, task_here

    numbered = {"number": tune.grid_search(list(range(trials))), "seed": seed}
    if algorithm == "asha":
        return numbered, {"scheduler": schedulers.ASHAScheduler(max_t=REPORTS, grace_period=1, reduction_factor=3)}
    if algorithm in ("sha", "hyperband"):  # of 27 trials four run to their ends, and six, twelve and five begin lower
        return numbered, {"scheduler": schedulers.HyperBandScheduler(max_t=REPORTS, reduction_factor=3)}
    space: dict[str, Any] = {}
    for name, one in task_here().space.items():
        if isinstance(one, Range):
            space[name] = (tune.loguniform if one.log else tune.uniform)(one.low, one.high)
        else:
            space[name] = tune.choice(list(one.of)) if algorithm == "tpe-hyperband" else one.of[1]
    if algorithm == "tpe-hyperband":
        return space, {
            "scheduler": schedulers.HyperBandScheduler(max_t=REPORTS, reduction_factor=3),
            "search_alg": OptunaSearch(seed=seed),
            "num_samples": trials,
        }
    import random

    random.seed(seed)
    mutated: dict[str, Any] = {name: one for name, one in space.items() if isinstance(one, tune.search.sample.Domain)}
    return {**space, "until": REPORTS}, {
        "scheduler": schedulers.PopulationBasedTraining(
            time_attr="training_iteration", perturbation_interval=PERTURBED_EVERY, hyperparam_mutations=mutated
        ),
        "num_samples": 8,
    }


def ray_trial(config: dict[str, Any]) -> None:
    """The same training, with Ray's checkpoints."""
    import ray
    import torch
    from ray import tune
    from torch.utils.data import DataLoader

    from benchmarks.tuning.real.device import Device
    from benchmarks.tuning.real.study import judge
    from benchmarks.tuning.real.tasks import BATCH, REPORTS, STEPS, draw, task_here

    task = task_here()
    drawn = draw(task, config["seed"], config["number"]) if "number" in config else config
    device = Device(GPUS[int(ray.get_gpu_ids()[0])])
    trained, judged = task.data()
    model = task.network(drawn)
    optimizer = torch.optim.SGD(model.parameters(), lr=drawn["lr"], momentum=drawn["momentum"])
    first, before = 0, tune.get_checkpoint()
    if before is not None:
        with before.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        optimizer.param_groups[0].update(lr=drawn["lr"], momentum=drawn["momentum"])
        first = saved["report"]
    loader = DataLoader(trained, batch_size=BATCH, shuffle=True, drop_last=True)
    batches = iter(loader)
    for report in range(first, REPORTS):
        for _ in range(STEPS):
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            with device.step():
                optimizer.zero_grad()
                task.loss(model, *batch).backward()
                optimizer.step()
        device.note()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "report": report + 1}
            torch.save(state, Path(folder) / "state.pt")
            said = {"error": judge(task, model, judged), "report": report + 1}
            tune.report(said, checkpoint=tune.Checkpoint.from_directory(folder))


def main(words: list[str]) -> None:
    if words[0] == "worker":
        worker(words[1], int(words[2]), words[3], int(words[4]))
        return
    kind, algorithm, seed, trials, target = words[0], words[1], int(words[2]), int(words[3]), float(words[4])
    run = by_optuna if kind == "optuna" else by_ray
    print(json.dumps(run(algorithm, seed, trials, target, words[5:] == ["whole"])))


if __name__ == "__main__":
    main(sys.argv[1:])
