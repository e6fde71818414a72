"""What the examples share: arguments, the gang if torchrun started one, a log of losses, the final line."""

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from slurm_hadar.runtime.emulation import find_cluster


def arguments(description: str, batch: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=2000, help="training steps of the whole job")
    parser.add_argument("--batch", type=int, default=batch, help="batch size per worker")
    parser.add_argument("--seed", type=int, default=0, help="everything is a function of it")
    parser.add_argument("--log", type=Path, help="file for one JSON line {step, loss} per --log-every steps")
    parser.add_argument("--log-every", type=int, default=10)
    return parser.parse_args()


def device() -> torch.device:
    """This worker's GPU; the CPU where there is none, and on a private cluster, whose GPUs are pretended."""
    if not torch.cuda.is_available() or find_cluster(os.environ) is not None:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def start(seed: int) -> tuple[int, int]:
    """(rank, world); a gang meets here if torchrun started one. All randomness is seeded, on each rank differently."""
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    mine = device()
    if mine.type == "cuda":
        torch.cuda.set_device(mine)  # NCCL's own messages go by it
    if world > 1:
        dist.init_process_group("gloo" if mine.type == "cpu" else "nccl")
    torch.manual_seed(seed)
    return rank, world


def share(model: torch.nn.Module, world: int) -> torch.nn.Module:
    """The model on its device, wrapped for data-parallel training if there is a gang."""
    model = model.to(device())
    if world == 1:
        return model
    # DDP else rearranges its gradient buckets after the first step of every run, and with three or more workers that
    # changes the order of sums: a resumed run would then differ from an undisturbed one in the last bits.
    return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


def loader(dataset: Dataset[Any], batch: int, seed: int, world: int) -> DataLoader[Any]:
    """Shuffled batches; each worker of a gang gets its part."""
    if world > 1:
        sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=seed, drop_last=True)
        return DataLoader(dataset, batch_size=batch, sampler=sampler, drop_last=True)
    return DataLoader(dataset, batch_size=batch, shuffle=True, drop_last=True)


class Log:
    """Losses as JSON lines. After a resume it goes on behind the resumed step, so no step stands there twice."""

    def __init__(self, path: Path | None, every: int, rank: int, resumed_at: int) -> None:
        self._every, self._file = every, None
        if path is None or rank != 0:
            return
        old = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in old if (step := _step(line)) is not None and step <= resumed_at]
        path.write_text("".join(line + "\n" for line in kept))
        self._file = path.open("a", buffering=1)

    def add(self, step: int, loss: torch.Tensor) -> None:
        """Note the loss of a finished step."""
        if self._file is not None and step % self._every == 0:
            self._file.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")


def _step(line: str) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # cut short when the job was killed
        return None


def finish(model: torch.nn.Module, loss: float, rank: int) -> None:
    """The last line of the output: the final loss, and a sum of all weights that is equal only if they are."""
    if rank == 0:
        state = getattr(model, "module", model).state_dict()
        digest = hashlib.sha256(b"".join(t.contiguous().cpu().numpy().tobytes() for t in state.values())).hexdigest()
        print(json.dumps({"done": True, "final_loss": loss, "weights_sha256": digest}), flush=True)
