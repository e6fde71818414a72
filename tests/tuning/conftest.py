"""Small objectives in files of their own, and ``hadar tune`` in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 120.0

#: An objective without PyTorch that saves and goes on as a loop of ours does: SIGTERM is noted, and heeded between
#: two steps. ``{steps}`` reports of ``{pace}`` seconds each, and more as long as there is a file ``hold``.
LOOP = """
import json, os, pathlib, signal, time

def objective(trial):
    x = trial.suggest_float("x", 0.0, 1.0)
    folder = pathlib.Path(os.environ["HADAR_JOB_DIR"])
    saved = folder / "saved"
    step = int(saved.read_text()) if saved.exists() else 0
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    with (folder / "steps").open("a") as steps:
        while step < {steps} or pathlib.Path("hold").exists():
            time.sleep({pace})
            step += 1
            steps.write(str(step) + "\\n")
            steps.flush()
            trial.report(x / step, step)
            if trial.should_prune():
                import optuna
                raise optuna.TrialPruned
            if asked:
                saved.write_text(str(step))
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
    return x / step
"""
#: One that asks for one number, once something else is done.
PLAIN = "def objective(trial):\n    {before}\n    return trial.suggest_float('x', 0, 1)\n"
RANDOM = ("--algorithm", "random", "--gpus", "2")


class Tuner:
    """``hadar tune`` in ``folder``, with a memory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        for name in [name for name in self.environ if name.startswith(("SLURM_", "HADAR_"))]:
            del self.environ[name]
        self.started: list[subprocess.Popen[str]] = []
        self.flags: list[str] = []  # of Python
        self.limits: dict[int, tuple[int, int]] = {}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, *self.flags, "-m", "slurm_hadar.cli.main", "tune", *words]
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=self._limit,
        )  # fmt: skip
        self.started.append(process)
        return process

    def _limit(self) -> None:
        for what, limits in self.limits.items():
            resource.setrlimit(what, limits)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def events(self, what: str = "") -> list[dict[str, Any]]:
        """Of all studies here."""
        found = []
        for file in self.folder.glob("*.hadar/*/events.jsonl"):
            found += [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
        return [event for event in found if not what or event["event"] == what]

    def until(self, holds: Callable[[], Any]) -> Any:
        """Wait for it, as long as a busy machine may need."""
        until = time.monotonic() + DEADLINE_S
        while not (found := holds()):
            assert time.monotonic() < until, [p.poll() for p in self.started]
            time.sleep(0.05)
        return found

    def trials(self) -> list[Any]:
        import optuna

        (file,) = self.folder.glob("*.db")
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        try:
            (study,) = optuna.get_all_study_summaries(storage)
            return optuna.load_study(study_name=study.study_name, storage=storage).get_trials()
        finally:
            storage.engine.dispose()


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Tuner]:
    made = Tuner(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., str]:
    """Writes a study's file; returns what ``hadar tune run`` is told."""

    def write(text: str = LOOP, **values: Any) -> str:
        for name, value in values.items():
            text = text.replace("{" + name + "}", str(value))
        (tmp_path / "study.py").write_text(text)
        return "study.py:objective"

    return write
