"""Trainings that share the memory and the time of a real GPU: by turns, by CUDA's time slices, and under MPS.

    python -m benchmarks.sharing.gpu [--only memory] [--json docs/results/sharing_gpu.json]

*memory*: two unmodified trainings that keep a twentieth of the GPU's memory each and need more than half of it within
an iteration: side by side they do not fit, one after the other's iteration they do. Each alone, both by turns, and both
at once without turns, where one must fail; weights are compared by their bits, and the driver is asked how much was
taken.

*large* and *small*: two trainings that fit beside each other (:mod:`benchmarks.sharing.pair`), which fill the GPU for
about 15 ms an iteration, or whose kernels do not; by turns with memory for both, which is kept, or for what one
iteration needs, which is handed on, and in lanes of their own (policy ``pack``). *MPS*: with an MPS daemon, where one
can be started, so that those without turns share the GPU by that and not by CUDA's time slices. Needs one GPU and
nvidia-ml-py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.sharing.pair import Training, figures, played

#: A training whose weights say whether a bit was lost: its seed is its name.
JOB = """
import hashlib, sys, time
import torch
seed, rows, steps, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = True
torch.manual_seed(seed)
width, depth = 1024, 10
layers = [part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.Dropout(0.1))]
model = torch.nn.Sequential(*layers).cuda()
kept = torch.empty(int(sys.argv[5]), dtype=torch.uint8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
times = []
for _ in range(steps):
    begin = time.monotonic()
    optimizer.zero_grad()
    batch = torch.randn(rows // 32, width, device="cuda").repeat(32, 1)
    model(batch).square().mean().backward()
    del batch
    optimizer.step()
    torch.cuda.synchronize()
    times.append((begin, time.monotonic()))
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.cpu().numpy().tobytes())
open(f"{folder}/{seed}", "w").write(digest.hexdigest() + chr(10) + repr(times))
"""
#: What a row of the batch takes at the end of its forward pass: ten layers' outputs with dropout's masks, the loss.
_ROW_BYTES = round(1024 * 4 * 17.5)
_PAIRS = {"large": Training(4096, rows=1024), "small": Training(512, rows=64)}
WAYS = {
    f"{kind}, {way}": (kind, way)
    for kind in _PAIRS
    for way in ("memory kept", "memory handed on", "lanes of their own", "MPS")
}


class Watch:
    """What the driver says is taken of the first GPU, looked at all the while."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml, self._gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.total = int(pynvml.nvmlDeviceGetMemoryInfo(self._gpu).total)
        self.name = str(pynvml.nvmlDeviceGetName(self._gpu))
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        self._over = threading.Event()

    @contextlib.contextmanager
    def taken(self) -> Iterator[list[tuple[float, int]]]:
        """Yields a list that has, once this is over, moments by the machine's monotonic clock and the bytes that were
        taken from then on."""
        found: list[tuple[float, int]] = []
        self._over.clear()
        thread = threading.Thread(target=self._look, args=(found,))
        thread.start()
        try:
            yield found
        finally:
            self._over.set()
            thread.join()

    def _look(self, found: list[tuple[float, int]]) -> None:
        while not self._over.wait(0.005):
            used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._gpu).used)
            if not found or used != found[-1][1]:
                found.append((time.monotonic(), used))


def _most(taken: list[tuple[float, int]]) -> int:
    return max(used for _, used in taken)


def memory(watch: Watch, steps: int) -> dict[str, Any]:
    """Alone, by turns, and at once."""
    kept, within = watch.total // 20, 55 * watch.total // 100
    rows = within // _ROW_BYTES // 32 * 32
    environ = {
        **os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_VISIBLE_DEVICES": "0",
        "HADAR_SHARE_PERSISTENT": str(kept + 2**30), "HADAR_SHARE_EPHEMERAL": str(within + within // 4),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as name:
        folder = Path(name)
        script = folder / "job.py"
        script.write_text(JOB)
        commands = [[sys.executable, str(script), str(n), str(rows), str(steps), name, str(kept)] for n in (1, 2)]
        found: dict[str, Any] = {"kept_bytes": kept, "within_bytes": within, "gpu_bytes": watch.total, "steps": steps}
        for number, command in enumerate(commands, 1):
            with watch.taken() as taken:
                subprocess.run(command, env=environ, check=True, capture_output=True)
            found[f"alone {number}"] = {**_told(folder / str(number))[0], "most_bytes": _most(taken)}
        share = [sys.executable, "-m", "slurm_hadar.cli.main", "share", "run", "--policy", "fair", "--memory"]
        together = [*share, str(watch.total - 2**30), *(" ".join(c) for c in commands)]
        with watch.taken() as taken:
            ran = subprocess.run(together, env=environ, capture_output=True)
        found["by turns"] = {"code": ran.returncode, "most_bytes": _most(taken)}
        spans = {}
        for number in (1, 2):
            found["by turns"][str(number)], spans[number] = _told(folder / str(number))
        found["by turns"] |= _traced(taken, spans)
        found["at once"] = _at_once(commands, environ, folder)
    found["bits are the same"] = all(
        found["by turns"][str(n)].get("weights") == found[f"alone {n}"]["weights"] for n in (1, 2)
    )
    return found


def _traced(taken: list[tuple[float, int]], spans: dict[int, list[tuple[float, float]]]) -> dict[str, Any]:
    """For a picture: what was taken, and when which training was in an iteration, in seconds from the first one."""
    first = min((begin for own in spans.values() for begin, _ in own), default=0.0)
    return {
        "taken": [[round(at - first, 3), used] for at, used in taken],
        "iterations": {n: [[round(a - first, 3), round(b - first, 3)] for a, b in own] for n, own in spans.items()},
    }


def _told(file: Path) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Weights and step times that a training has left, and each step; nothing where it has failed."""
    if not file.exists():
        return {}, []
    weights, times = file.read_text().split("\n")
    file.unlink()
    spans = [(float(a), float(b)) for a, b in re.findall(r"\(([\d.e+]+), ([\d.e+]+)\)", times)]
    told = {
        "weights": weights,
        "step_s": round(statistics.median(end - begin for begin, end in spans[1:]), 4),
        "first_s": round(spans[0][1] - spans[0][0], 3),
        "all_s": round(spans[-1][1] - spans[0][0], 3),
    }
    return told, spans


def _at_once(commands: list[list[str]], environ: dict[str, str], folder: Path) -> dict[str, Any]:
    """How many end by themselves."""
    started = [subprocess.Popen(c, env=environ, stderr=subprocess.PIPE, text=True) for c in commands]
    errors = [one.communicate()[1] for one in started]
    lines = [error.strip().splitlines()[-1][:160] if error.strip() else "" for error in errors]
    for number in (1, 2):
        (folder / str(number)).unlink(missing_ok=True)
    return {"codes": [one.returncode for one in started], "said": lines}


def pair(kind: str, way: str, cycles: int, seconds: float) -> dict[str, Any] | None:
    """Throughput, hand-overs and spread; None: there is no MPS daemon to be had."""
    told = {"HADAR_SHARE_PERSISTENT": "4G", "HADAR_SHARE_EPHEMERAL": "4G"}
    policy = "pack" if way == "lanes of their own" else "rr"
    memory = "12G" if way == "memory handed on" else "16G"
    training = replace(_PAIRS[kind], device="cuda", memory=memory, policy=policy, environ=told)
    handed = ("relay",) if policy == "pack" else ("turns", "relay")
    with _mps() if way == "MPS" else contextlib.nullcontext(True) as there:
        return figures(cycles, *played(cycles, seconds, training), handed) if there else None


@contextlib.contextmanager
def _mps() -> Iterator[bool]:
    """An MPS daemon of its own; False where there is none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="hadar-mps-") as folder:
        before = dict(os.environ)
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        started = subprocess.run([control, "-d"], capture_output=True, text=True)
        try:
            yield started.returncode == 0
        finally:
            subprocess.run([control], input="quit\n", text=True, capture_output=True, timeout=60)
            os.environ.clear()
            os.environ.update(before)


@click.command()
@click.option("--steps", default=12, show_default=True, help="Of each training that needs half of the memory.")
@click.option("--cycles", default=3, show_default=True, help="Of a pair's phases.")
@click.option("--seconds", default=1.5, show_default=True, help="Of each phase.")
@click.option("--only", multiple=True, type=click.Choice(["memory", *WAYS]), help="This alone; again for more.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Keep the figures there, too, with those it has.")
def main(steps: int, cycles: int, seconds: float, only: tuple[str, ...], file: Path | None) -> None:
    """Measure."""
    watch = Watch()
    found: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}
    found |= {"gpu": watch.name, "driver": watch.driver}
    for name in only or ("memory", *WAYS):
        found[name] = memory(watch, steps) if name == "memory" else pair(*WAYS[name], cycles, seconds)
        Console(stderr=True).print(f"{name} is done", highlight=False)
        if file is not None:
            file.write_text(json.dumps(found, indent=1) + "\n")
    click.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
