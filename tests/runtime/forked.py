"""Gangs of forked workers, for tests that need many processes with PyTorch: importing it costs more than the rest.

Run as a script by the tests (``python forked.py JOB ARGUMENTS``), so that the forks have no thread of pytest's.
"""

import gc
import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch.distributed.tensor import DTensor

import slurm_hadar
from slurm_hadar.runtime.checkpoint import files

PARTS = ("fsync", "mkdir", "rename", "replace", "unlink", "rmdir")


def fork(work: Callable[[], None], log: Path | None = None) -> int:
    """A child that does ``work`` and ends; its pid. What it says on stderr goes to ``log``."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if log is not None:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        torch.set_num_threads(1)
        work()
        code = 0
    except SystemExit as wish:
        code = int(wish.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int) -> int:
    """The child's exit code, minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def gang(world: int, work: Callable[[int], None], log: Path | None = None) -> list[int]:
    """``world`` workers in a process group; their exit codes. ``world`` 0: one worker, and no process group."""
    if world == 0:
        return [wait(fork(lambda: work(0), log))]
    with tempfile.TemporaryDirectory() as meeting:

        def member(rank: int) -> None:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            dist.init_process_group("gloo", init_method=f"file://{meeting}/f", rank=rank, world_size=world)
            work(rank)

        pids = [fork(partial(member, rank), log) for rank in range(world)]
        return [wait(pid) for pid in pids]


def training(kind: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(networks, what is given to train, optimizers): one for Adam and one for SGD with momentum."""
    torch.manual_seed(0)
    nn = torch.nn
    nets = {n: nn.Sequential(nn.Linear(7, 13), nn.BatchNorm1d(13), nn.Linear(13, 1)) for n in ("adam", "sgd")}
    given: dict[str, Any] = dict(nets)
    if kind == "ddp":
        given = {n: nn.parallel.DistributedDataParallel(net) for n, net in nets.items()}
    elif kind == "fsdp":
        for net in nets.values():
            torch.distributed.fsdp.fully_shard(net[0])
            torch.distributed.fsdp.fully_shard(net)
    adam = torch.optim.AdamW(nets["adam"].parameters(), lr=0.01, amsgrad=True)
    sgd = torch.optim.SGD(nets["sgd"].parameters(), lr=0.01, momentum=0.9)
    return nets, given, {"adam": adam, "sgd": sgd}


def step(given: dict[str, Any], optimizers: dict[str, Any], seed: int) -> None:
    torch.manual_seed(seed)
    for name, model in given.items():
        optimizers[name].zero_grad()
        model(torch.randn(8, 7)).square().mean().backward()
        optimizers[name].step()


def whole(nets: dict[str, Any], optimizers: dict[str, Any]) -> list[Any]:
    """All tensors of models and optimizers, unsharded; collective."""
    found: list[Any] = [t for net in nets.values() for t in net.state_dict().values()]
    for optimizer in optimizers.values():
        state = optimizer.state_dict()["state"]
        found += [state[i][k] for i in sorted(state) for k in sorted(state[i])]
    return [t.full_tensor() if isinstance(t, DTensor) else t.detach().clone() for t in found]


def reshard(directory: Path, stages: list[str]) -> None:
    """``ddp:4 fsdp:3 plain:0 ...``: each resumes what the one before has saved, bit by bit, and goes on."""
    for number, stage in enumerate(stages):
        kind, world = stage.split(":")

        def work(rank: int, kind: str = kind, number: int = number, stage: str = stage) -> None:
            nets, given, optimizers = training(kind)
            loop = slurm_hadar.train(given, optimizers, total_steps=2 * number + 2, directory=directory)
            assert loop.step == 2 * number, loop.step
            now = whole(nets, optimizers)
            if number:
                expected = torch.load(directory / "expected.pt")
                assert len(now) == len(expected) == 2 * 9 + 6 * 4 + 6, len(now)  # both networks, Adam's four, momentum
                assert all(torch.equal(a, b) for a, b in zip(now, expected, strict=True)), stage
            for _ in loop:
                step(given, optimizers, loop.step)
            last = whole(nets, optimizers)
            if rank == 0:
                torch.save(last, directory / "expected.pt")

        codes = gang(int(world), work)
        print(json.dumps({"stage": stage, "codes": codes}), flush=True)


class Cut:
    """Kills this process at the n-th operation on files, or when so many bytes have been written; else counts."""

    def __init__(self, operation: int = 0, byte: int = 0) -> None:
        self.operations = self.bytes = 0
        self._operation, self._byte = operation, byte
        for name in PARTS:
            setattr(os, name, self._counted(getattr(os, name)))
        self._write = files.Summed.write
        cut = self
        files.Summed.write = lambda self, data: cut._bytes(self, data)  # type: ignore[method-assign]

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.operations += 1
            if self.operations == self._operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return counted

    def _bytes(self, file: Any, data: Any) -> int:
        view = memoryview(data).cast("B")
        left = self._byte - self.bytes
        if 0 < left <= len(view):
            self._write(file, view[:left])
            os.kill(os.getpid(), signal.SIGKILL)
        self.bytes += len(view)
        return self._write(file, view)


def run_on(directory: Path, result: Path | None = None, **options: Any) -> None:
    """A training of 12 steps that saves every 4; where it began and how it ended go to ``result``."""
    nets, given, optimizers = training("plain")
    loop = slurm_hadar.train(given, optimizers, total_steps=12, directory=directory, save_every_steps=4, **options)
    began = loop.step
    for _ in loop:
        step(given, optimizers, loop.step)
    loop.save()  # the last step once more: its checkpoint is replaced
    if result is not None:
        torch.save({"began": began, "end": whole(nets, optimizers)}, result)


def kill(directory: Path, every: int, cuts: int, background: bool) -> None:
    """Cut a run off at each ``every``th operation and ``cuts`` random bytes; resume; compare with one left alone."""
    options: dict[str, Any] = {"keep": 1, "async_save": background}
    counted = directory / "counted.json"

    def undisturbed() -> None:
        cut = Cut()
        run_on(directory / "alone", directory / "alone.pt", **options)
        counted.write_text(json.dumps([cut.operations, cut.bytes]))

    assert wait(fork(undisturbed)) == 0
    expected = torch.load(directory / "alone.pt")["end"]
    operations, size = json.loads(counted.read_text())
    drawn = random.Random(1)
    points = [(n, 0) for n in range(1, operations + 1, every)] + [
        (0, drawn.randrange(1, size + 1)) for _ in range(cuts)
    ]
    began = []
    for number, (operation, byte) in enumerate(points):
        place, log, result = (directory / f"{number}{end}" for end in ("", ".log", ".pt"))

        def disturbed(place: Path = place, operation: int = operation, byte: int = byte) -> None:
            Cut(operation, byte)
            run_on(place, **options)

        assert wait(fork(disturbed)) == -signal.SIGKILL, (operation, byte)
        published = [p.name for p in place.glob("gen-*")] + [p.name for p in place.glob(".old-*")]
        assert wait(fork(partial(run_on, place, result, **options), log)) == 0, log.read_text()
        found = torch.load(result)
        said = log.read_text()
        assert "passed over" not in said, (operation, byte, said)
        assert not published or found["began"] > 0, (operation, byte, published)
        assert all(torch.equal(a, b) for a, b in zip(found["end"], expected, strict=True)), (operation, byte)
        left = {p.name for p in place.iterdir()} - {"claim", "gen-0-step-12", "gen-1-step-12"}
        assert left <= ({"gen-0-step-8"} if found["began"] == 12 else set()), (operation, byte, left)
        began.append(found["began"])
    print(
        json.dumps({"operations": operations, "bytes": size, "began": began[:-cuts], "at_bytes": began[-cuts:]}),
        flush=True,
    )


def fail(directory: Path, how: str, who: int, world: int) -> None:
    """Workers of a sharded training, one of which dies, or finds the disk full, in its second save."""

    def work(rank: int) -> None:
        _, given, optimizers = training("fsdp")
        loop = slurm_hadar.train(given, optimizers, total_steps=12, directory=directory, save_every_steps=4)
        write = files.Summed.write

        def bad(self: files.Summed, _data: Any) -> int:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            self.error = OSError(28, "No space left on device")
            raise self.error

        for _ in loop:
            step(given, optimizers, loop.step)
            if loop.step == 5 and rank == who:
                loop._saver.wait_written()  # noqa: SLF001 - the first save is safe before the fault comes
                files.Summed.write = bad  # type: ignore[method-assign, assignment]
            if loop.step == 9:
                loop._saver.wait_written()  # noqa: SLF001
                files.Summed.write = write  # type: ignore[method-assign]

    codes = gang(world, work, directory / "log")
    print(json.dumps({"codes": codes}), flush=True)


def warm_up() -> None:
    """Let PyTorch load here, once, what it loads when first used."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        run_on(Path(directory))
    gc.freeze()  # what goes on in a training is looked for among all objects: not among these


if __name__ == "__main__":
    job, where, *rest = sys.argv[1:]
    warm_up()
    if job == "reshard":
        reshard(Path(where), rest)
    elif job == "kill":
        kill(Path(where), int(rest[0]), int(rest[1]), rest[2] == "async")
    elif job == "fail":
        fail(Path(where), rest[0], int(rest[1]), int(rest[2]))
