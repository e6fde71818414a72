"""Uneven gangs: the gradients are those of equal shares, the samples of each step too, and shares follow speed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: E402

from slurm_hadar.runtime.batches.data import Feed  # noqa: E402
from slurm_hadar.runtime.batches.sampler import SharedBatchSampler  # noqa: E402
from slurm_hadar.runtime.batches.shares import Shares  # noqa: E402
from slurm_hadar.runtime.emulation import Pace  # noqa: E402
from slurm_hadar.runtime.workers.balance import ROUNDS_TO_SETTLE, Balance, is_wanted  # noqa: E402
from slurm_hadar.runtime.workers.stopwatch import Stopwatch  # noqa: E402

# 44 samples in batches of 16: a short batch ends each epoch, for two workers as for four
SCRIPT = """
import json, os, sys, time, torch, slurm_hadar
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
how, world, rank = os.environ["HOW"], dist.get_world_size(), dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1)).double()
data = TensorDataset(torch.arange(44), torch.randn(44, 3, dtype=torch.float64), torch.randn(44, 1, dtype=torch.float64))
model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005) if how != "by_hand" else net
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
workers = {"num_workers": 2, "prefetch_factor": 2} if how == "workers" else {}
if how == "own sampler":
    loader = DataLoader(data, batch_sampler=slurm_hadar.SharedBatchSampler(data, 16, seed=3))
else:
    loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data, seed=3), drop_last=how == "accumulate",
                        **workers)
how_balanced = {"even": False, "by_hand": "by_hand"}.get(how, True)
run = slurm_hadar.train(model, optimizer, total_steps=12, loader=loader, global_batch=16, balanced=how_balanced,
                        save_every_steps=5, async_save=False)
if run._balance is not None: run._balance._next_comparison = 1 << 60  # shares are the test's to choose
told = {int(k): tuple(v) for k, v in json.loads(os.environ["SHARES"]).items()}
for i, x, y in run:
    every = 3 if how == "accumulate" else 1
    sync = (run.step + 1) % every == 0
    loss = torch.nn.functional.mse_loss(net(x) if not sync else model(x), y)
    if how == "by_hand":
        (loss * run.weight).backward()
        run.computed()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
    elif sync:
        loss.backward()
    else:
        with model.no_sync():
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
    grads = [p.grad.flatten().tolist() for p in net.parameters()] if sync else None
    assert len(x) == run.share or how == "even" and len(x) in (16 // world, 12 // world), (len(x), run.share)
    print(json.dumps({"step": run.step, "epoch": run.epoch, "samples": i.tolist(), "grads": grads}), flush=True)
    if sync:
        optimizer.step(); optimizer.zero_grad()
    if run.step == int(sys.argv[1]): os._exit(9)
    if run.step + 1 in told: run._balance._shares.change(run.step + 1 + 4 * bool(workers), told[run.step + 1])
print(json.dumps({"weights": [p.detach().flatten().tolist() for p in net.parameters()]}))
"""


class Trainer:
    """Runs SCRIPT in the environment of a job; what equal shares give is found once per number of workers."""

    _even: ClassVar[dict[int, Any]] = {}

    def __init__(self, run_gang: Any, env: dict[str, str], folder: Any) -> None:
        self._run, self._env, self._folder = run_gang, env, folder

    def __call__(
        self, how: str, world: int, shares: dict[int, list[int]], *, stop: int = 99, restart: int = 0, job: str = "job"
    ) -> Any:
        """{step: (epoch, samples of each worker)}, {step: gradient}, the weights at the end, and what was said."""
        env = {**self._env, "HOW": how, "SHARES": json.dumps(shares), "SLURM_RESTART_COUNT": str(restart)}
        env["HADAR_JOB_DIR"] = str(self._folder / job)
        done = self._run(SCRIPT, env, world, str(stop))
        assert stop < 12 or [w.returncode for w in done] == [0] * world, [w.stderr for w in done]
        return read(done)

    def even(self, world: int) -> Any:
        """Equal shares, averaged by DistributedDataParallel as it is."""
        if world not in self._even:
            self._even[world] = self("even", world, {}, job="even")
        return self._even[world]


@pytest.fixture
def train(run_gang: Any, job_env: dict[str, str], tmp_path: Any) -> Trainer:
    return Trainer(run_gang, job_env, tmp_path)


def read(done: Any) -> Any:
    lines = [[json.loads(line) for line in w.stdout.splitlines()] for w in done]
    steps: dict[int, tuple[int, list[list[int]]]] = {}
    for line in (entry for rank in lines for entry in rank if "step" in entry):
        steps.setdefault(line["step"], (line["epoch"], []))[1].append(line["samples"])
    grads = {line["step"]: line["grads"] for line in lines[0] if line.get("grads")}
    return steps, grads, lines[0][-1].get("weights"), done[0].stderr


def whole(steps: dict[int, tuple[int, list[list[int]]]]) -> dict[int, tuple[int, list[int]]]:
    return {step: (epoch, sorted(i for each in samples for i in each)) for step, (epoch, samples) in steps.items()}


def close(one: Any, other: Any) -> bool:
    flat = [torch.tensor([v for part in grads for v in part], dtype=torch.float64) for grads in (one, other)]
    return torch.allclose(*flat, rtol=1e-11, atol=1e-14)


def same(uneven: Any, even: Any, first: int = 0) -> None:
    """Steps, samples, gradients and weights of two runs agree, the latter two but for rounding."""
    assert whole(uneven[0]) == {s: seen for s, seen in whole(even[0]).items() if s >= first}
    assert all(close(uneven[1][s], even[1][s]) for s in uneven[1])
    assert close(uneven[2], even[2])


@pytest.mark.parametrize(
    ("how", "world", "shares"),
    [
        ("plain", 2, {2: [12, 4], 7: [15, 1]}),
        ("plain", 4, {1: [7, 1, 5, 3], 6: [2, 2, 2, 10], 9: [13, 1, 1, 1]}),
        ("workers", 2, {1: [12, 4]}),
        ("own sampler", 2, {3: [5, 11]}),
        ("by_hand", 2, {1: [3, 13]}),
    ],
)
def test_the_result_is_that_of_equal_shares(how: str, world: int, shares: Any, train: Trainer) -> None:
    """Any shares, changed in the midst of epochs: the same samples in each step, the same gradients, the same weights;
    also with loaders that draw ahead, a sampler of one's own, and averaging by hand."""
    uneven = train(how, world, shares)
    same(uneven, train.even(world))
    for step, wanted in shares.items():
        found = next(samples for s, (_, samples) in uneven[0].items() if s >= step + 4 * (how == "workers") + 1)
        size = sum(len(s) for s in found)
        assert size < 16 or [len(s) for s in found] == wanted


def test_equal_shares_are_bit_identical_to_plain_averaging(train: Trainer) -> None:
    """Where all are equally fast nothing at all changes: the hook does what DDP does."""
    assert train("plain", 2, {})[:3] == train.even(2)[:3]


def test_resumed_in_the_midst_of_an_epoch_with_other_shares(train: Trainer) -> None:
    """Killed in an epoch that was shared unevenly, the run goes on with the next global batch, again with equal shares,
    and with another number of workers."""
    train("plain", 2, {1: [13, 3]}, stop=7)
    resumed = train("plain", 4, {6: [1, 3, 5, 7]}, restart=1)
    assert min(resumed[0]) == 5
    same(resumed, train.even(2), first=5)


def test_accumulated_gradients_are_weighted_alike(train: Trainer) -> None:
    """Three turns of the loop per optimizer step, with equal and with uneven shares."""
    plain = train("accumulate", 2, {}, job="plain")
    uneven = train("accumulate", 2, {3: [14, 2]})
    assert len(plain[1]) == 4 and "drop_last" not in uneven[3]
    same(uneven, plain)


SLEEPING = """
import os, sys, time, torch, slurm_hadar
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = torch.nn.Linear(1, 1)
data = TensorDataset(torch.randn(6400, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data))
run = slurm_hadar.train(model, optimizer, total_steps=60, loader=loader, global_batch=64, directory=None)
for (x,) in run:
    time.sleep(len(x) * (0.004 if dist.get_rank() else 0.001))
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
print(run.share)
"""


def test_shares_follow_the_speeds_of_real_workers(
    run_gang: Callable[..., list[subprocess.CompletedProcess[str]]], job_env: dict[str, str]
) -> None:
    """Two workers of which one takes four times as long per sample, told to balance by the job's comment: the other is
    soon given most of the samples, and the log says so, once per change."""
    done = run_gang(SLEEPING, {**job_env, "HADAR_MIX": "balanced"}, 2)
    assert [w.returncode for w in done] == [0, 0], [w.stderr for w in done]
    fast, slow = (int(w.stdout) for w in done)
    assert fast + slow == 64
    assert fast >= 2 * slow  # 51 to 13, if sleeps were exact
    assert "samples per worker, by speeds of" in done[0].stderr
    assert done[1].stderr == ""


class Alone:
    """The gang as one rank sees it, the others' numbers being given."""

    def __init__(self, rates: list[float], turn_s: float = 0.1) -> None:
        self.rank, self.world, self.leads = 0, len(rates), True
        self.rates, self.turn_s = rates, turn_s
        self.asked = 0

    def all_gather(self, own: tuple[float, ...]) -> list[tuple[float, ...]]:
        self.asked += 1
        return [(rate, self.turn_s, own[2]) for rate in self.rates]


def balance(gang: Any, total: int = 64, ahead: int = 0, most: int | None = None) -> tuple[Balance, Shares]:
    shares = Shares(total, gang.world, 0)
    return Balance(gang, shares, torch.nn.Linear(1, 1), True, most, ahead, None), shares


def turns(made: Balance, shares: Shares, count: int, begin: int = 0) -> list[tuple[int, ...]]:
    seen = []
    for turn in range(begin, begin + count):
        made.begin(turn)
        seen.append(shares.at(turn))
        made.computed()
        made.end()
        made.rebalance(turn + 1, turn + 1)
    return seen


def test_shares_change_when_it_pays(capsys: pytest.CaptureFixture[str]) -> None:
    """Clear differences at once, noise never, and again when speeds change; looks become rare where nothing changes."""
    gang = Alone([3.0, 1.0])
    made, shares = balance(gang)
    seen = turns(made, shares, 40)
    assert seen == [(32, 32)] * ROUNDS_TO_SETTLE + [(48, 16)] * (40 - ROUNDS_TO_SETTLE)
    assert capsys.readouterr().err == (
        "hadar: from step 8 on 48+16 of 64 samples per worker, by speeds of 3.0+1.0 samples/s: 16 s instead of 32 s a "
        "step\n"
    )
    gang.rates = [3.05, 0.97]
    assert set(turns(made, shares, 200, 40)) == {(48, 16)}
    assert gang.asked < 15  # every 2 s, at 0.1 s a turn
    gang.rates = [1.0, 1.0]
    assert turns(made, shares, 100, 240)[-1] == (32, 32)
    assert capsys.readouterr().err.count("hadar:") == 1


def test_a_small_difference_must_last() -> None:
    """One of a tenth is believed when it is seen twice in a row; one that comes and goes never is."""
    gang = Alone([1.2, 1.0])
    made, shares = balance(gang)
    assert turns(made, shares, 20) == [(32, 32)] * 2 * ROUNDS_TO_SETTLE + [(35, 29)] * (20 - 2 * ROUNDS_TO_SETTLE)
    gang = Alone([1.0, 1.0])
    made, shares = balance(gang)
    turn = 0
    for look in range(20):
        gang.rates = [1.2, 1.0] if look % 2 else [1.0, 1.0]
        ahead = made._next_comparison - turn  # noqa: SLF001 - speeds change just before each look
        assert set(turns(made, shares, ahead, turn)) == {(32, 32)}
        turn += ahead
    assert gang.asked == 20


def test_nothing_changes_as_long_as_a_speed_is_unknown() -> None:
    gang = Alone([3.0, 0.0])
    made, shares = balance(gang)
    assert set(turns(made, shares, 60)) == {(32, 32)}


def test_a_change_waits_for_what_was_dealt_out_already() -> None:
    """With a loader that draws ahead the shares change behind its last batch."""
    made, shares = balance(Alone([3.0, 1.0]), ahead=4)
    assert turns(made, shares, 30) == [(32, 32)] * (ROUNDS_TO_SETTLE + 4) + [(48, 16)] * (26 - ROUNDS_TO_SETTLE)


def test_a_worker_is_not_given_more_than_it_can_take() -> None:
    made, shares = balance(Alone([9.0, 1.0]), most=40)
    assert turns(made, shares, 20)[-1] == (40, 24)
    with pytest.raises(ValueError, match="take at most 20 each"):
        balance(Alone([1.0, 1.0]), most=20)


def test_by_hand_it_must_be_told_when_the_gradient_is_ready() -> None:
    made, _ = balance(Alone([3.0, 1.0]))
    made.begin(0)
    with pytest.raises(ValueError, match=r"run\.computed"):
        made.end()


class Hands:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for name in ("perf_counter", "monotonic"):
            monkeypatch.setattr(time, name, lambda: self.now)
        monkeypatch.setattr(time, "sleep", lambda s: self.move(s))

    def move(self, seconds: float) -> None:
        self.now += seconds


def test_only_own_work_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for others does not count, whether in the averaging or between steps; accumulated turns are one round."""
    hands = Hands(monkeypatch)
    watch = Stopwatch(False, None)
    watch.run()
    for number in range(40):
        for _ in range(2):  # turns per round
            hands.move(0.5)
            if number % 2:
                watch.halt()
                hands.move(7.0)
                watch.run()
            last = watch.within_round
            if last:
                watch.meet()
                hands.move(3.0)
                watch.run()
                hands.move(0.25)  # the optimizer: it is the next round's
            watch.turn(samples=10)
    assert watch.turns_per_round == 2
    assert watch.take_rate() == pytest.approx(20 / 1.25)
    assert watch.take_rate() is None  # each round counts once


def test_a_pretended_speed_is_measured_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the private cluster a worker that waits for slower ones still shows its own speed, and goes with its share."""
    hands = Hands(monkeypatch)
    pace = Pace(10.0, exponent=1.0)
    watch = Stopwatch(False, pace)
    watch.run()
    for load, rate in ((1.0, 160.0), (1.5, 160.0)):
        watch.reset()
        for _ in range(12):
            hands.move(0.02)
            pace.wait(load)
            watch.meet()
            hands.move(0.9)  # the others
            watch.run()
            watch.turn(samples=int(16 * load))
        assert watch.take_rate() == pytest.approx(rate, rel=1e-6)


def test_what_cannot_be_balanced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clear line each, at the beginning: nothing to share, a loader without a common order, a wrong word."""
    monkeypatch.delenv("HADAR_MIX", raising=False)
    assert (is_wanted(None, 64), is_wanted(True, 64), is_wanted("by_hand", 64)) == (False, True, True)
    monkeypatch.setenv("HADAR_MIX", "balanced")
    assert (is_wanted(None, 64), is_wanted(False, None)) == (True, False)
    with pytest.raises(ValueError, match="mix=balanced in the job's comment needs train"):
        is_wanted(None, None)
    with pytest.raises(ValueError, match="must be True, False or 'by_hand'"):
        is_wanted("yes", 64)
    shuffled = DataLoader(TensorDataset(torch.arange(64)), batch_size=8, shuffle=True)
    with pytest.raises(ValueError, match="needs a DistributedSampler, not RandomSampler"):
        Feed(shuffled, 32, Shares(64, 2, 0))
    with pytest.raises(ValueError, match="wrapped in DistributedDataParallel"):
        Balance(Alone([1.0, 1.0]), Shares(64, 2, 0), torch.nn.Linear(1, 1), False, None, 0, None)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_global_batch_is_what_equal_workers_would_have(shuffle: bool, drop_last: bool) -> None:
    """For 50 samples, three workers and batches of 12: the union over workers, whatever the shares."""
    data = range(50)
    samplers: list[Any] = [
        DistributedSampler(data, 3, r, shuffle=shuffle, seed=5, drop_last=drop_last) for r in range(3)
    ]
    for s in samplers:
        s.set_epoch(2)
    equal = [list(s) for s in samplers]
    expected = [sorted(i for e in equal for i in e[4 * k : 4 * k + 4]) for k in range(4 if drop_last else 5)]
    parts = []
    for rank, sampler in enumerate(samplers):
        shares = Shares(12, 3, rank)
        shares.change(1, (7, 1, 4))
        parts.append(list(SharedBatchSampler.over(sampler, shares, drop_last=False)))
    assert [sorted(i for part in batch for i in part) for batch in zip(*parts, strict=True)] == expected
    assert [len(p) for p in parts[0]][:4] == [4, 7, 7, 7]
    assert list(accumulate(len(b) for b in expected))[-1] == (48 if drop_last else 51)


def test_a_sampler_of_another_batch_is_refused() -> None:
    own = SharedBatchSampler(range(64), 32)
    assert [len(b) for b in own] == [32, 32] and len(own) == 2
    with pytest.raises(ValueError, match="does not go with global_batch=64"):
        own.bind(Shares(64, 1, 0))
