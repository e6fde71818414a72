"""Epochs of a script's own: each a loop that ends with it, resumed in its midst or in what follows its batches."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: As many a script has it: a function for an epoch, which asks its loader for a length, a validation that draws
#: random numbers of its own, and a schedule. ``AT``: where the first run is told to end.
SCRIPT = """
import os, signal, torch, slurm_hadar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)
data = TensorDataset(torch.randn(24, 3))
model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=WORKERS)
AT, log = {at!r}, []
def told(*at): at == AT and os.getenv("SLURM_RESTART_COUNT") == "0" and os.kill(os.getpid(), signal.SIGTERM)
def train(epoch):
    told("top", epoch)
    model.train()
    for i, (x,) in enumerate(loader, {start}):
        loss = model(x).square().mean() / EVERY
        loss.backward()
        told("turn", epoch, i)
        if (i + 1) % EVERY == 0: optimizer.step(); optimizer.zero_grad()
        log.append((epoch, i, epoch * len(loader) + i, len(loader.dataset)))
        if i + 1 == MOST: told("break", epoch); break
def validate():
    model.eval()
    with torch.no_grad():
        for (x,) in DataLoader(data, batch_size=8, shuffle=True): model(x)
{loop}
    train(epoch)
    told("validation", epoch)
    validate()
    schedule.step()
    SAVE
    told("end", epoch)
print(model[0].weight.tolist(), schedule.get_last_lr(), torch.rand(1).item())
print(log)
"""
PLAIN = {"loop": "for epoch in range(4):", "start": "0"}
OURS = {
    "start": "loader.start",
    "loop": "run = slurm_hadar.train(model, optimizer, total_steps=4 * min(6, MOST), loader=loader, scheduler=schedule)"
    "\nfor epoch, loader in run.epochs():",
}


@pytest.fixture
def run(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, list[str], str]]:
    def run(form: dict[str, str], restart: int = 0, at: tuple[Any, ...] = (), **values: Any) -> Any:
        script = SCRIPT.format(**form, at=at)
        for name, value in ({"WORKERS": 0, "EVERY": 1, "MOST": 9, "SAVE": "pass"} | values).items():
            script = script.replace(name, str(value))
        started = start_script(script, {**job_env, "SLURM_RESTART_COUNT": str(restart)})
        out, said = started.communicate(300)
        return started.returncode, out.splitlines(), said

    return run


PLACES = [
    *(("top", 1), ("turn", 1, 0), ("turn", 1, 2), ("turn", 1, 5), ("validation", 1), ("end", 1)),
    *(("turn", 3, 5), ("validation", 3), ("end", 3)),
]
SOME = [("turn", 1, 2), ("turn", 1, 5), ("validation", 1)]
KINDS: list[dict[str, Any]] = [{"WORKERS": 2}, {"EVERY": 3}, {"SAVE": "run.save()"}]


def ends_alike(run: Any, at: tuple[Any, ...], values: dict[str, Any]) -> None:
    """A run that is told to end ``at`` a place, and one that resumes it, end as the loop that was there before."""
    expected = run(PLAIN, **{**values, "SAVE": "pass"})[1]
    code, _, said = run(OURS, at=at, **values)
    assert code == -signal.SIGTERM and "nothing could be saved" not in said, said
    code, found, said = run(OURS, 1, at=at, **values)
    assert code == 0 and "resumed from" in said and "WARNING" not in said, said
    assert found[0] == expected[0]
    assert expected[1].endswith(found[1].strip("[")), found[1]


@pytest.mark.parametrize("at", PLACES)
def test_it_ends_as_the_loop_that_it_took_the_place_of(run: Any, at: tuple[Any, ...]) -> None:
    ends_alike(run, at, {})


@pytest.mark.thorough
@pytest.mark.parametrize("at", SOME)
@pytest.mark.parametrize("values", KINDS, ids=str)
def test_so_it_does_with_workers_accumulation_and_saves(run: Any, at: tuple[Any, ...], values: dict[str, Any]) -> None:
    ends_alike(run, at, values)


@pytest.mark.parametrize("at", [("turn", 1, 1), ("break", 1), ("validation", 1), ("break", 3)])
def test_an_epoch_that_is_left_early_is_over(run: Any, at: tuple[Any, ...]) -> None:
    """The next one begins anew, also where the run ended in the turn that leaves it, whose step is made."""
    ends_alike(run, at, {"MOST": 3})


SMALL = """
import os, signal, torch, slurm_hadar
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(): optimizer.zero_grad(); model(torch.randn(4, 3)).square().mean().backward(); optimizer.step()
first = os.environ["SLURM_RESTART_COUNT"] == "0"
"""


@pytest.fixture
def small(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, list[str], str]]:
    def run(script: str, restart: int = 0) -> Any:
        started = start_script(SMALL + script, {**job_env, "SLURM_RESTART_COUNT": str(restart)})
        out, said = started.communicate(300)
        return started.returncode, out.splitlines(), said

    return run


def test_a_training_that_is_over_begins_no_epoch(small: Any) -> None:
    """Where it has come to its end, or was stopped, in the midst of an epoch or behind it."""
    script = """
run = slurm_hadar.train(model, optimizer, total_steps=10, loader=list(range(4)), name="{name}")
for epoch, batches in run.epochs():
    for batch in batches:
        step()
        if "{name}" == "turn" and run.step == 5: run.stop()
    print(epoch, run.step)
    if "{name}" == "behind" and epoch == 1: run.stop(); break
"""
    ends = {"end": ["0 4", "1 8", "2 10"], "turn": ["0 4", "1 6"], "behind": ["0 4", "1 8"]}
    for name, expected in ends.items():
        assert small(script.replace("{name}", name))[1] == expected
        assert small(script.replace("{name}", name), 1)[1] == []


def test_what_waits_is_saved_when_the_epoch_is_over(small: Any) -> None:
    """A save that is due behind an epoch's last step, by the steps or by the script, holds what follows the step too:
    nobody resumes in an epoch of which no batch is left."""
    script = """
run = slurm_hadar.train(model, optimizer, total_steps=12, loader=list(range(4)), also={"epochs": 0}, SAVES)
for epoch, batches in run.epochs():
    for batch in batches: step()
    ASKS
    assert batch == 3
    print(epoch, run._saver.saved_step, flush=True)
    run.also["epochs"] += 1
    if epoch == 1: os._exit(9)
"""
    for saves, asks in (("save_every_steps=4", "pass"), ("name='asked'", "run.save()")):
        own = script.replace("SAVES", saves).replace("ASKS", asks)
        assert small(own)[1] == ["0 None", "1 4"]
        assert small(own + "print(run.also['epochs'])", 1)[1] == ["1 4"]


def test_a_look_at_a_batch_leaves_it_to_the_epoch(small: Any) -> None:
    """Also before the first step, and of a source that has neither a length nor attributes."""
    script = """
run = slurm_hadar.train(model, optimizer, total_steps=7, loader=lambda epoch: (10 * epoch + n for n in range(3)))
for epoch, batches in run.epochs():
    try: len(batches)
    except TypeError as error: print(error)
    print(hasattr(batches, "dataset"), bool(batches), next(iter(batches)))
    for batch in batches: print(batch); step()
"""
    code, out, said = small(script)
    assert code == 0 and "WARNING" not in said
    looked = [f"a loader of type function tells no number of batches|False True {10 * n}" for n in range(3)]
    batches = ["0|1|2", "10|11|12", "20"]
    assert "|".join(out) == "|".join(f"{look}|{own}" for look, own in zip(looked, batches, strict=True))


@pytest.mark.parametrize(("begins", "told"), [("", True), (", batches.start", False), (", begin", False)])
def test_an_index_begins_where_the_epoch_goes_on(small: Any, begins: str, told: bool) -> None:
    """By which a learning rate is set: one that begins at 0 is told of."""
    script = f"""
run = slurm_hadar.train(model, optimizer, total_steps=80, loader=list(range(40)))
def logged(batches): yield from batches
for epoch, batches in run.epochs():
    begin = batches.start
    for n, batch in enumerate(logged(batches){begins}):
        assert n == batch or not first
        optimizer.param_groups[0]["lr"] = 0.1 / (len(batches) * epoch + n + 1)
        step()
        if first and (epoch, n) == (1, 10): os.kill(os.getpid(), signal.SIGTERM)
"""
    assert ("begins at 0 again" in small(script)[2]) == told
    code, _, said = small(script.replace("or not first", "") if begins else script, 1)
    assert code == 0 and "resumed from gen-0-step-51" in said


@pytest.mark.parametrize(
    ("top", "behind", "told"),
    [
        ("data.size = 2 * epoch", "pass", False),
        ("data.size = 5 if epoch >= 1 else 0", "pass", False),
        ("pass", "data.size += 1", True),
    ],
)
def test_numbers_of_a_dataset_that_each_epoch_sets_are_no_loss(small: Any, top: str, behind: str, told: bool) -> None:
    """Those that are set behind an epoch are. The others a resumed run has or tells of (test_settings.py)."""
    script = f"""
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __init__(self): self.size = 0
    def __len__(self): return 16
    def __getitem__(self, i): return self.size
data = Data()
run = slurm_hadar.train(model, optimizer, total_steps=20, loader=DataLoader(data, 4))
for epoch, batches in run.epochs():
    {top}
    for batch in batches: step()
    {behind}
"""
    code, _, said = small(script)
    assert code == 0 and ("numbers of Data (set them in every run" in said) == told == ("WARNING" in said), said
    assert "Give train()" not in said


@pytest.mark.parametrize("total", [8, 7])
@pytest.mark.parametrize("place", ["turn", "behind"])
@pytest.mark.parametrize("by", ["SIGKILL", "SIGTERM"])
def test_what_the_last_epochs_loop_sets_is_there_for_what_follows(small: Any, total: int, place: str, by: str) -> None:
    """A run that ends in the last turn, or behind its batches, leaves none that has a turn to make without a batch."""
    script = f"""
def told(at):
    if first and run.step + (at == "turn") == {total} and at == "{place}": os.kill(os.getpid(), signal.{by})
run = slurm_hadar.train(model, optimizer, total_steps={total}, loader=list(range(4)))
for epoch, batches in run.epochs():
    for batch in batches:
        step(); loss = batch
        told("turn")
    told("behind")
    print(epoch, loss, flush=True)
print("end", model.weight.tolist())
"""
    whole = small(script, 2)[1]
    script = script.replace("total_steps", "async_save=False, name='told', total_steps")
    assert small(script)[0] == -getattr(signal, by)
    code, found, said = small(script, 1)
    assert code == 0 and found == whole[-1 if by == "SIGTERM" else -2 :], said


@pytest.mark.parametrize(("leaves", "code"), [("raise ValueError", 1), ("break", 0)])
def test_who_leaves_the_last_epoch_has_not_ended_it(small: Any, leaves: str, code: int) -> None:
    """The next run, by ``retry=`` say, has a step to make and does what follows it."""
    script = f"""
run = slurm_hadar.train(model, optimizer, total_steps=8, loader=list(range(4)))
for epoch, batches in run.epochs():
    for batch in batches: step()
    if epoch == 1 and first: {leaves}
    print(batch)
"""
    assert small(script)[:2] == (code, ["3"])
    assert small(script, 1)[:2] == (0, ["3"])


def test_a_run_that_has_no_batch_left_of_its_epoch_says_so(small: Any) -> None:
    """Before a script of which that asks too much ends with an error."""
    script = """
run = slurm_hadar.train(model, optimizer, total_steps=8, loader=list(range(4)))
for epoch, batches in run.epochs():
    for batch in batches:
        step(); loss = 1
        if first and run.step + 1 == 8: os.kill(os.getpid(), signal.SIGTERM)
    if first and epoch == 1: os._exit(9)  # as where what follows takes longer than Slurm waits
    print(epoch, loss)
"""
    assert small(script)[0] == 9
    code, found, said = small(script, 1)
    assert code == 1 and found == [] and "all batches of epoch 1 were used before, so its loop makes no turn" in said


def test_an_epoch_without_a_length_ends_where_the_last_one_has(small: Any) -> None:
    """A save that is due behind its last step waits for what follows it, as where the length is known; in the first
    epoch nobody knows, and the run that is resumed there says that it makes no turn. A longer epoch goes on."""
    script = """
sizes = [4, 4, 6, 4]
run = slurm_hadar.train(
    model, optimizer, total_steps=18, loader=lambda epoch: iter(range(sizes[epoch])), save_every_steps=STEPS,
    async_save=False
)
for epoch, batches in run.epochs():
    for batch in batches:
        step(); loss = run.step
    if first and epoch == AT: os._exit(9)
    print(epoch, loss, run._saver.saved_step, flush=True)
"""
    own = script.replace("STEPS", "8").replace("AT", "1")
    assert small(own)[:2] == (9, ["0 3 None"])
    code, found, said = small(own, 1)
    assert code == 0 and [line.split()[1] for line in found] == ["3", "7", "13", "17"], said
    own = script.replace("STEPS", "4").replace("AT", "0").replace("async_save", "name='first', async_save")
    assert small(own)[0] == 9
    code, found, said = small(own, 1)
    assert code == 1 and "all batches of epoch 0 were used before, so its loop makes no turn" in said


@pytest.mark.parametrize("by", ["SIGKILL", "SIGTERM"])
def test_what_was_printed_is_safe_as_soon_as_what_it_tells_of_is_saved(small: Any, by: str) -> None:
    """Where a node dies, and where the process is told to end behind the loop: no later run prints it again."""
    script = f"""
import sys
sys.stdout.reconfigure(line_buffering=False, write_through=False)  # as that of a file
run = slurm_hadar.train(
    model, optimizer, total_steps=12, loader=list(range(4)), save_every_steps=4, async_save=False
)
for epoch, batches in run.epochs():
    for batch in batches:
        if epoch == 2 and "{by}" == "SIGKILL": os.kill(os.getpid(), signal.SIGKILL)
        step()
    print("epoch", epoch)
os.kill(os.getpid(), signal.SIGTERM)
"""
    code, found, _ = small(script)
    assert code == -getattr(signal, by)
    assert found == ["epoch 0", "epoch 1"] + ["epoch 2"] * (by == "SIGTERM")


GANG = """
import os, signal, sys, torch, slurm_hadar
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo")
torch.manual_seed(0)
data = torch.randn(48, 3)
sampler = DistributedSampler(data, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
run = slurm_hadar.train(model, optimizer, total_steps=24, loader=loader, scheduler=schedule)
def told(where, epoch):
    if [where, epoch] == [sys.argv[1], 1] and os.environ["SLURM_RESTART_COUNT"] == "0":
        dist.barrier(); os.kill(os.getpid(), signal.SIGTERM)
for epoch, loader in run.epochs():
    loader.sampler.set_epoch(epoch)
    for n, x in enumerate(loader, loader.start):
        if n + 1 == len(loader): told("turn", epoch)
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    told("validation", epoch)
    with torch.no_grad(): dist.all_reduce(model.module(data).mean())
    schedule.step()
print(model.module.weight.tolist(), schedule.get_last_lr())
"""


@pytest.mark.parametrize("where", ["turn", "validation"])
def test_several_workers_end_an_epoch_together(run_gang: Any, job_env: dict[str, str], where: str) -> None:
    """All are told to end in its last turn, or in what follows: none waits for another."""
    expected = run_gang(GANG, {**job_env, "SLURM_JOB_ID": ""}, 2, "")[0].stdout
    for restart, code in enumerate((-signal.SIGTERM, 0)):
        done = run_gang(GANG, {**job_env, "SLURM_RESTART_COUNT": str(restart)}, 2, where)
        assert [one.returncode for one in done] == [code] * 2, done
    assert "resumed from" in done[0].stderr and "WARNING" not in done[0].stderr
    assert done[0].stdout == done[1].stdout == expected


def test_another_pass_over_an_epochs_loader_is_told_of(small: Any) -> None:
    """Once: it gives no batch, and an evaluation of nothing has no value. A loader that is left and gone on with is no
    such pass."""
    script = """
run = slurm_hadar.train(model, optimizer, total_steps=12, loader=list(range(4)))
for epoch, batches in run.epochs():
    for batch in batches: step(); {left}
    print(sum(1 for _ in batches), run.step)
"""
    _, out, said = small(script.replace("{left}", ""))
    assert out == ["0 4", "0 8", "0 12"]
    assert said.count("is gone through once more, and has no batch left") == 1 and "loader of epoch 0 " in said
    _, out, said = small(script.replace("{left}", "break").replace("=12", "=8, name='left'"))
    assert out == ["3 4", "3 8"] and "gone through once more" not in said
