"""One process of a trial: its environment, its GPUs, its turns, the objective, and how that ended."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

import zmq

from slurm_hadar import scratch
from slurm_hadar.messages import TRIAL, step_id
from slurm_hadar.runtime.inject import INJECT, _hadar_progress
from slurm_hadar.runtime.launch.turns import Reserve
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.declared import memory_of
from slurm_hadar.sharing.gpus import VISIBLE, named
from slurm_hadar.sharing.standby import Post
from slurm_hadar.sharing.turns import Policy
from slurm_hadar.tuning.study.source import module_of
from slurm_hadar.tuning.trial.remote import Paused, RemoteTrial
from slurm_hadar.tuning.trial.wire import SCRATCH, VARIABLE, Line, Spec, TunerGone, line_to

__all__ = ["load_objective", "main", "run"]

BEAT_S = 0.5
_ORPHAN_S = 30.0
_LONGEST_TEXT = 400
#: A trial is no job of Slurm's: its checkpoints are the study's, whichever job goes on with it.
_JOB = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_HET_JOB_ID")


def main() -> None:
    """As srun starts it."""
    run(Spec.read(os.environ.pop(VARIABLE)))


def run(spec: Spec) -> None:
    """Be the process that ``spec`` describes, to its end."""
    rank = int(os.environ.get("SLURM_PROCID", "0")) if spec.rank is None else spec.rank
    step = step_id(os.environ)
    scratch.remove_abandoned(SCRATCH)  # of tuners that were killed
    scratch.join(Path(spec.meet).parent)
    pages = Path(f"{spec.meet}-{rank}")  # the tuner removes it, too, if this process is killed
    pages.mkdir(mode=0o700)
    sys.path.append(str(Path.cwd()))  # behind all else: nothing there stands in the way of a module of Python's
    try:
        prepare(os.environ, spec, rank, pages)
        with _reserve(spec, rank):
            line = Line(spec, rank)
            line.ask("hello", pid=os.getpid(), step=step)
            threading.Thread(target=_beat, args=(spec, rank, pages), name="hadar-beat", daemon=True).start()
            _end(line, rank, _outcome(spec, rank, line))
    finally:
        shutil.rmtree(pages, ignore_errors=True)


def prepare(environ: MutableMapping[str, str], spec: Spec, rank: int, pages: Path) -> None:
    """The environment of the objective."""
    for name in _JOB:
        environ.pop(name, None)
    environ.update(
        HADAR_GPU_TYPE=spec.gpu_type,
        HADAR_JOB_DIR=spec.folder,
        **{VISIBLE: ",".join(named(environ, spec.gpus)), TRIAL: str(spec.trial)},
        SLURM_RESTART_COUNT=str(spec.run),
        HADAR_RUN_DIR=str(pages),
    )
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": spec.world, "LOCAL_WORLD_SIZE": spec.world}
    for name, value in ranks.items():
        environ.pop(name, None)  # one alone is not distributed: Hugging Face's Trainer would look for the others
        if spec.world > 1:
            environ[name] = str(value)
    environ.pop("HADAR_SHARE", None)
    if spec.share is not None and spec.world == 1:
        environ.update(HADAR_SHARE=spec.share, HADAR_SHARE_LABEL=f"trial {spec.trial}")
    if spec.world > 1:
        environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # they are on one node


@contextlib.contextmanager
def _reserve(spec: Spec, rank: int) -> Iterator[None]:
    """The broker of a GPU that others may share is kept up by those who do, as for jobs with shards."""
    if spec.share is None or spec.world > 1 or rank != 0:
        yield
        return
    path = Path(spec.share)
    rules = Rules(Policy.FAIR, memory_of(os.environ))
    reserve = Reserve(Post(path, rules, Limits(linger_s=None)), (signal.SIGTERM, signal.SIGINT))
    try:
        yield
    finally:
        reserve.dismiss()


def _outcome(spec: Spec, rank: int, line: Line) -> dict[str, Any]:
    """What to tell of the objective's end."""
    try:
        objective = load_objective(spec.file, spec.function)
        _hook()
        gang = _gang(spec, rank)
        trial = RemoteTrial(line, spec.trial, rank, gang, Path(spec.folder) / "untold")
        value = objective(trial)
        trial.catch_up()
    except (Paused, TunerGone):
        return {"state": "paused"}
    except BaseException as error:
        if _is_pruning(error):
            return {"state": "pruned"}
        traceback.print_exc()
        return {"state": "failed", "kind": "memory" if _is_memory(error) else "error", "text": _one_line(error)}
    return {"state": "complete", "value": _plain(value)}


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    try:
        number = float(value)
    except Exception:
        return _shown(value)
    return number if math.isfinite(number) else str(number)


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_LONGEST_TEXT]
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _end(line: Line, rank: int, outcome: dict[str, Any]) -> None:
    if rank == 0 or outcome["state"] == "failed":
        with contextlib.suppress(TunerGone):
            line.ask("end", **outcome)
    distributed = sys.modules.get("torch.distributed")
    if outcome["state"] == "complete" and distributed is not None and distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def load_objective(file: str, function: str) -> Callable[[Any], Any]:
    """The function of a file, loaded as a module of the file's name, or of its package where it needs that."""
    path = Path(file)
    name, folder = module_of(path)
    sys.path.insert(0, str(folder))
    sys.argv[:] = [str(path)]
    module = importlib.import_module(name) if "." in name else _of_its_own(name, path)
    found: Callable[[Any], Any] = getattr(module, function)
    return found


def _of_its_own(name: str, path: Path) -> ModuleType:
    """The file by its path: another module may have its name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _hook() -> None:
    """PyTorch's hooks, which count steps and take turns: now, or when the objective imports it."""
    sys.modules.setdefault("_hadar_progress", _hadar_progress)
    inject = importlib.import_module("slurm_hadar.runtime.inject.sitecustomize")
    if (optimizers := sys.modules.get("torch.optim.optimizer")) is not None:
        inject.register(optimizers)
    sys.path[:] = [p for p in sys.path if p != str(INJECT)]


def _gang(spec: Spec, rank: int) -> Any:
    """The ranks of a trial that has several GPUs; None for one."""
    if spec.world == 1:
        return None
    import torch

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(backend, init_method=f"file://{spec.meet}", rank=rank, world_size=spec.world)
    from slurm_hadar.runtime.workers.gang import Gang

    return Gang()


def _is_pruning(error: BaseException) -> bool:
    return any(c.__name__ == "TrialPruned" and c.__module__.startswith("optuna") for c in type(error).__mro__)


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "out of memory" in str(error)


def _one_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
    return "".join(c for c in text if c.isprintable())[:_LONGEST_TEXT]


def _beat(spec: Spec, rank: int, pages: Path) -> None:
    """Tell the tuner of the progress, and hear from it when to end."""
    parent = os.getppid()
    socket = line_to(spec, zmq.DEALER, zmq.Context.instance())
    head = {"op": "beat", "token": spec.token, "trial": spec.trial, "run": spec.run, "rank": rank}
    page: Any = None
    file = pages / f"{os.getpid()}.map"
    while True:
        if page is None and (page := _page_at(file)) is not None:
            shutil.rmtree(pages, ignore_errors=True)  # both ends have it open; at a rung this process ends by a signal
        said = _progress(page) if page is not None and page.ready else {}
        socket.send_string(json.dumps({**head, **said}))
        # a short trial shall be known before its first rung; others may wait for a copy of what is saved
        wait_s = BEAT_S if said and page.words[_hadar_progress.ASKED] == said["answered"] else BEAT_S / 5
        if socket.poll(round(1000 * wait_s)) and json.loads(socket.recv()).get("do") == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
        if os.getppid() != parent:  # the tuner is gone; a loop of ours saves and ends
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_ORPHAN_S)
            os._exit(128 + signal.SIGTERM)


def _page_at(file: Path) -> Any:
    """The page of the training, once it is there as a whole; else None."""
    try:
        return _hadar_progress.Page(file)
    except (OSError, ValueError):  # the latter: it is just being made
        return None


def _progress(page: Any) -> dict[str, Any]:
    words, seconds, names = page.words, page.seconds, _hadar_progress
    return {
        "steps": words[names.STEPS], "total": words[names.TOTAL], "resumable": bool(words[names.RESUMABLE]),
        "batch": words[names.GLOBAL_BATCH], "answered": words[names.ANSWERED], "saved": words[names.SAVED_STEP],
        "save_s": seconds[names.SAVE_S], "load_s": seconds[names.LOAD_S], "time": time.time(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
