"""The training API: resuming is exact, alone and with two workers; saving never ends a training."""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import slurm_hadar  # noqa: E402
from slurm_hadar.errors import CheckpointError  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
# dropout, batch norm, momentum, a schedule, shuffling, augmentation by Python's random: all that must be resumed
SCRIPT = """
import hashlib, json, os, random, sys, torch, slurm_hadar
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
many = "ALONE" not in os.environ
if many: dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0); random.seed(0)
nn = torch.nn
net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
data = TensorDataset(torch.randn(100, 6), torch.randn(100, 1))
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(net) if many else net
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=60)
sampler = torch.utils.data.DistributedSampler(data) if many else None
loader = DataLoader(data, batch_size=8, shuffle=not many, sampler=sampler)
stop = int(sys.argv[1])
run = slurm_hadar.train(model, optimizer, total_steps=60, loader=loader, scheduler=schedule, state={"seen": 0}, keep=1,
                        save_every_steps=int(os.environ.get("EVERY", "1000")), async_save="WAIT" not in os.environ)
for x, y in run:
    loss = torch.nn.functional.mse_loss(model(x + 0.01 * random.random()), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
    run.state["seen"] += len(x)
    if rank == 0: print(json.dumps({"step": run.step, "epoch": run.epoch, "loss": loss.item()}), flush=True)
    if run.step == stop: os.kill(os.getpid(), 9)
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in net.state_dict().values())).hexdigest()
if rank == 0: print(json.dumps({"weights": digest, "seen": run.state["seen"], "lr": schedule.get_last_lr()}))
"""


@pytest.fixture
def train(run_gang: Any) -> Callable[..., list[dict[str, Any]]]:
    """One run of the job with so many workers; the lines that rank 0 printed."""

    def run(workers: int, env: dict[str, Any], restart: int, stop: int, every: int) -> list[dict[str, Any]]:
        env = {**env, "SLURM_RESTART_COUNT": str(restart), "EVERY": str(every)}
        env |= {"ALONE": "1"} if workers == 1 else {}
        done = run_gang(SCRIPT, env, workers, str(stop), seconds=300)
        if workers == 1 or stop > 60:
            assert [d.returncode for d in done] == [0 if stop > 60 else -9] * workers, [d.stderr for d in done]
        return [json.loads(line) for line in done[0].stdout.splitlines()]

    return run


@pytest.mark.parametrize("waiting", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("workers", [1, 2], ids=["one worker", "two workers"])
def test_moved_three_times_is_bit_identical(
    workers: int, waiting: bool, train: Callable[..., list[dict[str, Any]]], job_env: dict[str, str], tmp_path: Path
) -> None:
    """Killed three times between checkpoints, in different epochs: same losses, same weights, same everything.

    A save that is written beside the training may be cut off by the kill: then the one before counts.
    """
    job_env |= {"WAIT": "1"} if waiting else {}
    expected = train(workers, {**job_env, "HADAR_JOB_DIR": str(tmp_path / "undisturbed")}, 0, 99, 1000)
    losses: dict[int, float] = {}
    for restart, stop in enumerate([9, 26, 45, 99]):
        lines = train(workers, job_env, restart, stop, 7)
        steps = [line for line in lines if "step" in line]
        last = 0 if restart == 0 else [9, 26, 45][restart - 1] // 7 * 7
        assert steps[0]["step"] in ({last} if waiting else {last, max(0, last - 7)})
        losses |= {line["step"]: line["loss"] for line in steps}
    assert losses == {line["step"]: line["loss"] for line in expected if "step" in line}
    assert lines[-1] == expected[-1]


def test_another_number_of_workers_goes_on(train: Callable[..., list[dict[str, Any]]], job_env: dict[str, str]) -> None:
    """A job moved from two workers to one and back keeps its steps and its weights' history."""
    job_env["WAIT"] = "1"
    train(2, job_env, 0, 20, 5)
    lines = train(1, job_env, 1, 31, 5)
    assert lines[0]["step"] == 20
    lines = train(2, job_env, 2, 99, 5)
    assert lines[0]["step"] == 30
    assert lines[-2]["step"] == 59


ELASTIC = """
import json, os, sys, torch, slurm_hadar
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
data = TensorDataset(torch.arange(52.0).reshape(52, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data, seed=3))
run = slurm_hadar.train(model, optimizer, total_steps=21, loader=loader, save_every_steps=4, global_batch=8,
                        async_save=False)
for (x,) in run:
    optimizer.zero_grad(); (model(x) - x).square().mean().backward(); optimizer.step()
    print(json.dumps({"step": run.step, "epoch": run.epoch, "samples": x.flatten().tolist()}), flush=True)
    if run.step == int(sys.argv[1]): os._exit(9)
print(json.dumps({"weight": net.weight.item(), "worker_batch": run.worker_batch}))
"""


@pytest.fixture
def train_elastic(run_gang: Any) -> Callable[..., tuple[dict[int, tuple[int, list[float]]], dict[str, Any]]]:
    """One run with ``world`` workers: {step: (epoch, the samples of all workers, sorted)}, and rank 0's last words."""

    def run(
        env: dict[str, Any], restart: int, stop: int, world: int
    ) -> tuple[dict[int, tuple[int, list[float]]], dict[str, Any]]:
        done = run_gang(ELASTIC, {**env, "SLURM_RESTART_COUNT": str(restart)}, world, str(stop), seconds=300)
        assert stop < 21 or [d.returncode for d in done] == [0] * world, [d.stderr for d in done]
        lines = [[json.loads(line) for line in d.stdout.splitlines()] for d in done]
        steps: dict[int, tuple[int, list[float]]] = {}
        for line in (entry for rank in lines for entry in rank if "step" in entry):
            _, before = steps.get(line["step"], (0, []))
            steps[line["step"]] = (line["epoch"], sorted([*before, *line["samples"]]))
        return steps, lines[0][-1]

    return run


def elastic_alone() -> tuple[dict[int, tuple[int, list[float]]], float]:
    """What ELASTIC does, as a plain loop over global batches."""
    torch.manual_seed(0)
    net, step, steps = torch.nn.Linear(1, 1), 0, {}
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    sampler = torch.utils.data.DistributedSampler(range(52), num_replicas=1, rank=0, seed=3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for samples in torch.tensor(list(sampler), dtype=torch.float32).split(8):
            x = samples.reshape(-1, 1)
            optimizer.zero_grad()
            (net(x) - x).square().mean().backward()
            optimizer.step()
            steps[step], step = (epoch, sorted(samples.tolist())), step + 1
    return steps, net.weight.item()


def test_an_elastic_training_sees_the_same_samples_in_each_step(
    train_elastic: Callable[..., tuple[dict[int, tuple[int, list[float]]], dict[str, Any]]], job_env: dict[str, str]
) -> None:
    """Begun with two workers, ended with four: as many steps, each of them with the samples that a single worker would
    have had in it, so as many samples in all; the weights agree but for rounding."""
    first, _ = train_elastic(job_env, 0, 10, 2)
    second, last = train_elastic(job_env, 1, 99, 4)
    expected, weight = elastic_alone()

    assert (min(first), min(second), last["worker_batch"]) == (0, 8, 2)  # resumed from the checkpoint of step 8
    assert {**{s: seen for s, seen in first.items() if s < 8}, **second} == expected
    assert last["weight"] == pytest.approx(weight, rel=1e-4)


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    """At once, in words that say what to do; and a loader whose batches are its own affair is not silently kept."""
    from slurm_hadar.runtime.spec import worker_batch_of

    assert (worker_batch_of(256, 4), worker_batch_of(None, 3)) == (64, None)
    with pytest.raises(ValueError, match="cannot be shared equally by 3 workers; say batch="):
        worker_batch_of(256, 3)
    own = torch.utils.data.DataLoader(range(9), batch_sampler=[[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="without a batch sampler of its own"):
        small(tmp_path, loader=own, global_batch=4)


def small(directory: Path | None, total: int = 10, **options: object) -> Any:
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    return layer, optimizer, slurm_hadar.train(layer, optimizer, total_steps=total, directory=directory, **options)


def test_a_finished_training_resumes_to_its_end(tmp_path: Path) -> None:
    """Started again after its end, the loop makes no step and the weights are the final ones."""
    layer, _, run = small(tmp_path)
    for _ in run:
        layer.weight.data += 1
    again, _, run = small(tmp_path)
    assert list(run) == []
    assert run.step == 10
    assert torch.equal(again.weight, layer.weight)


def test_wrapped_and_plain_are_interchangeable(tmp_path: Path) -> None:
    """What a wrapped model saved, a plain one loads."""
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = slurm_hadar.train(torch.nn.DataParallel(net), optimizer, total_steps=1, directory=tmp_path)
    list(run)
    layer, _, _ = small(tmp_path)
    assert torch.equal(layer.weight, net.weight)


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Another model in the same place: one line with both ways out, instead of silently starting anew."""
    _, _, run = small(tmp_path)
    list(run)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="does not fit this training") as caught:
        slurm_hadar.train(net, optimizer, total_steps=5, directory=tmp_path)
    assert "\n" not in str(caught.value)
    slurm_hadar.train(net, optimizer, total_steps=5, directory=tmp_path, name="second")


def test_a_failed_save_does_not_end_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up: one line, training goes on to its end, and the earlier checkpoint is still good."""
    from slurm_hadar.runtime.checkpoint import files

    _, _, run = small(tmp_path, save_every_steps=4, async_save=False)
    write = files.Summed.write

    def full(self: Any, data: Any) -> Any:
        if run.step > 4:
            self.error = OSError(28, "No space left on device")
            raise self.error
        return write(self, data)

    monkeypatch.setattr(files.Summed, "write", full)
    assert list(run) == list(range(10))
    lines = [line for line in capfd.readouterr().err.splitlines() if "No space left" in line]
    assert len(lines) == 2  # at step 8, and at the end
    monkeypatch.undo()
    assert small(tmp_path)[2].step == 4


def test_a_state_that_cannot_be_saved_does_not_end_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An object that pickle refuses is named; the training goes on."""
    _, _, run = small(tmp_path, state={"open": open(os.devnull)})  # noqa: PTH123, SIM115
    assert len(list(run)) == 10
    assert "was not written" in capfd.readouterr().err


def test_save_within_the_loop_is_of_the_whole_step(tmp_path: Path) -> None:
    """run.save() in the body saves when the step is done, so that nothing is done twice or left out."""
    layer, _, run = small(tmp_path)
    for _ in run:
        if run.step == 3:
            run.save()
        layer.weight.data.fill_(run.step + 1)
        if run.step == 4:
            break
    again, _, resumed = small(tmp_path)
    assert (resumed.step, again.weight[0, 0].item()) == (4, 4.0)


def test_outside_slurm_it_is_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a job and a directory nothing is written, and asking for a save says what is missing."""
    for name in [n for n in os.environ if n.startswith(("SLURM", "HADAR"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    _, _, run = small(None)
    assert list(run) == list(range(10))
    with pytest.raises(CheckpointError, match="directory="):
        run.save()
    assert list(tmp_path.iterdir()) == []


def test_the_signal_saves_where_there_is_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGUSR2 without an agent: the handler only sets a flag, the save happens after the step."""
    monkeypatch.delenv("HADAR_RUN_DIR", raising=False)
    before = signal.getsignal(signal.SIGUSR2)
    try:
        _, _, run = small(tmp_path, save_every_s=None)
        for _ in run:
            if run.step == 5:
                os.kill(os.getpid(), signal.SIGUSR2)
            if run.step == 7:
                break
        assert small(tmp_path)[2].step == 6
        for _ in small(tmp_path / "second")[2]:  # a later training of the process hears it too
            os.kill(os.getpid(), signal.SIGUSR2)
            break
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_importing_the_package_needs_no_torch() -> None:
    """The head node has no PyTorch: importing slurm_hadar must not import it."""
    script = "import sys, slurm_hadar, slurm_hadar.messages; sys.exit('torch' in sys.modules or 'zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0


def _trained(directory: Path, steps: int, optimizer: Any, scheduler: Any, batch: int, total: int = 20) -> None:
    """So many steps of a training that begins, or goes on, in the directory."""
    model = torch.nn.Linear(1, 1)
    made = optimizer(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.arange(40.0).reshape(-1, 1), batch_size=batch)
    run = slurm_hadar.train(
        model, made, total_steps=total, loader=loader, scheduler=scheduler(made), directory=directory
    )
    for number, samples in enumerate(run, 1):
        made.zero_grad()
        model(samples).sum().backward()
        made.step()
        if number == steps:
            break
    run.save()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, None),
        (
            {"optimizer": torch.optim.AdamW},
            "optimizer has become torch.optim.adamw.AdamW, which goes on from the state",
        ),
        ({"scheduler": functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=9)}, "CosineAnnealingLR"),
        ({"batch": 8}, "an epoch of 10 batches has become one of 5"),
    ],
    ids=["nothing", "optimizer", "scheduler", "batch"],
)
def test_what_has_changed_since_the_checkpoint_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], changed: dict[str, Any], told: str | None
) -> None:
    """Its states fit, so that the training goes on, as another one."""
    before = {
        "optimizer": torch.optim.Adam,
        "scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3),
        "batch": 4,
    }
    _trained(tmp_path, 3, **before)
    assert "WARNING" not in capfd.readouterr().err

    _trained(tmp_path, 2, **(before | changed))

    warnings = [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]
    assert len(warnings) == (told is not None) and (told is None or told in warnings[0])


def test_who_looks_at_a_batch_is_told_that_it_is_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A job's next run looks at one more. A loop that is left later and entered again takes the next batch as ever."""
    for peeks in (True, False):
        layer, optimizer, run = small(tmp_path / str(peeks), loader=[torch.ones(1, 2)] * 5)
        if peeks:
            next(iter(run))
        for batch in run:
            if run.step == 4:
                break
            layer(batch).sum().backward()
            optimizer.step()
        for batch in run:
            layer(batch).sum().backward()
            optimizer.step()
        assert capfd.readouterr().err.count("one that the training does not see") == peeks
