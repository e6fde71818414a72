"""What a checkpoint must not leave out: gradients that are summed up over turns, and what train() was not told of."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import slurm_hadar  # noqa: E402
from tests.profiles import examples  # noqa: E402

TURNS = 40


class Training:
    """A model with two optimizers, each of which steps after so many turns as its list says, again and again."""

    def __init__(self, lengths: list[list[int]]) -> None:
        torch.manual_seed(0)
        self.nets = [torch.nn.Linear(3, 2) for _ in lengths]
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=0.05) for net in self.nets]
        self.mean = torch.optim.swa_utils.AveragedModel(self.nets[0])
        self.data = torch.randn(TURNS, 3)
        ends = [list(itertools.accumulate(itertools.islice(itertools.cycle(each), TURNS))) for each in lengths]
        self.steps_at = [set(each) for each in ends]
        self.seen: list[int] = []

    def run(self, directory: Path | None, every: int, stop: int | None = None) -> None:
        run = slurm_hadar.train(
            self.nets,
            self.optimizers,
            total_steps=TURNS,
            directory=directory,
            save_every_steps=every,
            save_every_s=None,
            async_save=False,
            also={"mean": self.mean, "seen": self.seen, "count": 0},
        )
        for turn in run:
            for net, optimizer, steps_at in zip(self.nets, self.optimizers, self.steps_at, strict=True):
                net(self.data[turn]).square().sum().backward()
                if turn + 1 in steps_at:
                    optimizer.step()
                    optimizer.zero_grad()
            if turn + 1 in self.steps_at[0]:
                self.mean.update_parameters(self.nets[0])
            self.seen.append(turn)
            run.also["count"] += 1
            if run.step + 1 == stop:
                return
        self.count = run.also["count"]

    @property
    def weights(self) -> list[float]:
        return [x for net in (*self.nets, self.mean) for p in net.parameters() for x in p.flatten().tolist()]


LENGTHS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=2)


@examples(25)
@given(LENGTHS, st.integers(1, 7), st.lists(st.integers(1, TURNS - 1), max_size=3))
def test_accumulated_gradients_survive_any_stops(lengths: list[list[int]], every: int, stops: list[int]) -> None:
    undisturbed = Training(lengths)
    undisturbed.run(None, every)
    with tempfile.TemporaryDirectory() as folder:
        for stop in [*stops, None]:
            training = Training(lengths)
            training.run(Path(folder), every, stop)

    assert training.weights == undisturbed.weights
    assert training.seen == undisturbed.seen == list(range(TURNS))
    assert training.count == TURNS


@pytest.mark.parametrize(("to_none", "prompt"), [(True, True), (False, False)])
def test_gradients_that_are_thrown_away_hold_no_save_up(tmp_path: Path, to_none: bool, prompt: bool) -> None:
    """A GAN's discriminator has gradients of the generator's pass at the end of each turn. Where they are set to None a
    save waits for nothing once that was seen; where they are set to zero, which looks like adding to them, it waits."""
    torch.manual_seed(0)
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    first, second = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, two))
    run = slurm_hadar.train(
        [one, two],
        [first, second],
        total_steps=20,
        directory=tmp_path,
        save_every_steps=6,
        save_every_s=None,
        async_save=False,
    )
    saved = []
    for turn in run:
        fake = one(torch.randn(4, 2))
        second.zero_grad(set_to_none=to_none)
        two(fake.detach()).sum().backward()
        second.step()
        first.zero_grad(set_to_none=to_none)
        two(fake).sum().backward()
        first.step()
        if turn in (6, 12):
            saved.append(any(tmp_path.glob(f"gen-*-step-{turn}")))
    assert saved == [prompt, prompt]


def test_a_save_waits_for_the_optimizer(tmp_path: Path) -> None:
    """Asked for after each second turn, it comes with each third, where the gradients are used."""
    Training([[3]]).run(tmp_path, 2, stop=19)

    assert sorted(p.name for p in tmp_path.glob("gen-*")) == ["gen-0-step-15", "gen-0-step-18"]


def test_optimizers_that_never_step_together_are_saved_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm_hadar.runtime.checkpoint.turns.MOST_TURNS", 8)
    Training([[2], [1, 2]]).run(tmp_path, 5, stop=39)  # after turns 2, 4, 6, ... and 1, 3, 4, 6, 7, ...
    assert "WARNING" not in capsys.readouterr().err

    never = Training([[2], [2]])
    never.steps_at[1] = set(range(1, TURNS, 2))
    never.run(tmp_path / "never", 5, stop=39)

    assert list((tmp_path / "never").glob("gen-*"))
    assert "checkpoints leave gradients out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, ("2 parameters that Adam trains", "AveragedModel")),
        ({"mean": True}, ("2 parameters that Adam trains",)),
        ({"optimizer": True, "mean": True}, ("optimizer Adam (2 parameters)",)),
        ({"model": True}, ("AveragedModel",)),
        ({"model": True, "mean": True}, ()),
    ],
)
def test_what_goes_on_and_is_not_saved_is_told_once(
    given: Any, named: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training([[1], [1]])
    nets = training.nets if "model" in given else training.nets[0]
    optimizers = training.optimizers[0] if "optimizer" in given else training.optimizers
    also = {"mean": training.mean} if "mean" in given else None
    run = slurm_hadar.train(nets, optimizers, total_steps=TURNS, directory=tmp_path, also=also, save_every_steps=4)
    for turn in run:
        for net, optimizer in zip(training.nets, training.optimizers, strict=True):
            net(training.data[turn]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        training.mean.update_parameters(training.nets[0])

    warned = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    told = [what for line in warned for what in line.partition("back: ")[2].partition(". Give")[0].split(", ")]
    assert sorted(told) == sorted(named)
    assert len(warned) <= 1


def test_also_takes_plain_data_or_what_has_a_state() -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"also\['odd'\] holds an object of set"):
        slurm_hadar.train(net, optimizer, total_steps=1, also={"odd": [1, {"deep": {1, 2}}]})


def test_a_training_that_forgets_what_it_saved_is_stopped(tmp_path: Path) -> None:
    """Nothing of a checkpoint is dropped without a word."""
    Training([[1]]).run(tmp_path, 5, stop=12)
    training = Training([[1]])
    with pytest.raises(slurm_hadar.errors.CheckpointError, match="does not fit this training"):
        slurm_hadar.train(training.nets, training.optimizers, total_steps=TURNS, directory=tmp_path)


SCRIPT = """
import sys, time, torch, slurm_hadar
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
run = slurm_hadar.train(net, optimizer, total_steps=10**6, directory=sys.argv[1], save_every_s=None)
for turn in run:
    net(torch.ones(1)).sum().backward()
    if turn % 3 == 2: optimizer.step(); optimizer.zero_grad()
    if turn == 10: print("goes", flush=True)
    time.sleep(0.01)
"""


def test_a_sigterm_saves_and_ends(tmp_path: Path) -> None:
    """As of the owner's scontrol requeue; it ends by the signal, and nothing of it is lost."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "goes\n"
    process.terminate()
    _, complaints = process.communicate(timeout=300)

    assert process.returncode == -signal.SIGTERM
    (saved,) = tmp_path.glob("gen-*")
    step = int(saved.name.rpartition("-")[2])
    assert step > 10
    assert step % 3 == 0
    assert complaints == f"hadar: told to end (SIGTERM); step {step} is saved\n"


PAUSED = """
import signal, sys, time
from slurm_hadar.runtime.workers.gang import Gang
from slurm_hadar.runtime.progress.link import Link, stand_still
signal.signal(signal.SIGTERM, lambda *_: None)  # as Lightning does
print("stands", flush=True)
stand_still(Link(Gang(), True), Gang(), 60.0)
"""


def test_a_pause_after_a_save_ends_with_sigterm_whoever_handles_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", PAUSED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "stands\n"
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        process.terminate()  # again, should the first come before the pause
        time.sleep(0.05)

    assert process.wait(1) == -signal.SIGTERM


def test_sparse_gradients_wait_too(tmp_path: Path) -> None:
    """Of an embedding; saved every third turn, where they are used."""
    torch.manual_seed(0)
    net = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for turn in slurm_hadar.train(net, optimizer, total_steps=9, directory=tmp_path, save_every_steps=2, keep=9):
        net(torch.tensor([turn % 5])).sum().backward()
        if turn % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()

    assert {p.name for p in tmp_path.glob("gen-*")} == {"gen-0-step-3", "gen-0-step-6", "gen-0-step-9"}


def test_gradients_that_were_used_hold_no_save_up_while_others_are_trained(tmp_path: Path) -> None:
    """As a generator's, which steps in each third turn, while the critic is trained in each."""
    nets = [torch.nn.Linear(3, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    run = slurm_hadar.train(
        nets, optimizers, total_steps=12, directory=tmp_path, save_every_steps=1, save_every_s=None, async_save=False
    )
    saved = []
    for turn in run:
        saved.append(max((int(path.name.split("-")[-1]) for path in tmp_path.glob("**/gen-*-step-*")), default=0))
        for net, optimizer, every in zip(nets, optimizers, (3, 1), strict=True):
            if turn % every == 0:
                optimizer.zero_grad()
                net(torch.ones(3)).square().sum().backward()
                optimizer.step()
    assert saved == list(range(12))
