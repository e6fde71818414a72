"""What few trainings do, and each that does would silently be another one after a move: exact, or told of before."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAINING = """
import os, random, signal, sys, torch, slurm_hadar
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
restart, stop = int(os.environ["SLURM_RESTART_COUNT"]), int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
def told():
    if restart == 0 and stop >= 0 and run.step == stop: os.kill(os.getpid(), signal.SIGTERM)
class Data(Dataset):
    bad = -1
    def __init__(self): self.size = 1.0
    def __len__(self): return 40
    def __getitem__(self, i):
        if i == self.bad: raise OSError("unreadable")
        return torch.full((3,), float(i)) * self.size / 40
data = Data()
net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1))
class Master(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    def step(self):
        for p in self.param_groups[0]["params"]:
            own = self.state[p].setdefault("master", p.detach().float().clone())
            own -= 0.001 * p.grad.float(); p.data.copy_(own)
def step(x, net=net, optimizer=None):
    optimizer = optimizer or globals()["optimizer"]
    optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()
"""
END = """
flat = [t.float().flatten() for t in net.state_dict().values()]
print("end", run.step, torch.cat(flat).tolist() if flat else [])
"""
EXACT = {
    "an optimizer that keeps its weights in higher precision": """
net.to(torch.bfloat16); optimizer = Master(net.parameters())
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14)):
    step(torch.full((2, 3), 0.1 * i).bfloat16()); told()
""",
    "an optimizer around another that has its groups, where a schedule sets their learning rate": """
class Around(torch.optim.Optimizer):
    def __init__(self, base):
        super().__init__(base.param_groups, {}); self.base = base; self.param_groups = base.param_groups
    def step(self): self.base.step()
    def load_state_dict(self, state): super().load_state_dict(state); self.base.param_groups = self.param_groups
base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9); optimizer = Around(base)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7); group = base.param_groups[0]
both = {"around": optimizer, "base": base}
for i in (run := slurm_hadar.train(net, both, total_steps=14, scheduler=schedule)):
    step(torch.full((2, 3), 0.1 * i)); schedule.step(); told()
    assert base.param_groups[0] is optimizer.param_groups[0] is group
""",
    "weights that each epoch's beginning changes, as an optimizer's that averages": """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
run = slurm_hadar.train(net, optimizer, total_steps=14, loader=list(range(4)))
for epoch, batches in run.epochs():
    with torch.no_grad(): net[2].bias.mul_(1.01)
    for i in batches: step(torch.full((2, 3), 0.1 * i)); told()
""",
    "a dict of the script's own": """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1); mine = {"n": 0, "all": []}; seen = mine["all"]
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14, state=mine)):
    step(torch.full((2, 3), 0.1 * mine["n"])); mine["n"] += 1; seen.append(i); told()
assert mine == {"n": 14, "all": list(range(14))}, mine
""",
    "modules that are lazy": """
net = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14)): step(torch.randn(4, 3), net); told()
""",
    "a sample that cannot be read": """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1); data.bad = 3
run = slurm_hadar.train(net, optimizer, total_steps=14, loader=DataLoader(data, 4, shuffle=True))
while run.step < 14:
    try:
        for x in run: step(x); told()
    except OSError: continue
""",
    "weights of a sampler that the loop changes": """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1); sampler = WeightedRandomSampler(torch.ones(40), 40)
for x in (run := slurm_hadar.train(net, optimizer, total_steps=24, loader=DataLoader(data, 4, sampler=sampler))):
    step(x); sampler.weights[run.step] *= 5; told()
""",
    "a generator of the model's": """
class Noisy(nn.Module):
    def __init__(self): super().__init__(); self.inner = nn.Linear(3, 1); self.dice = torch.Generator().manual_seed(4)
    def forward(self, x): return self.inner(x + torch.randn(x.shape, generator=self.dice))
net = Noisy(); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14)): step(torch.ones(2, 3), net); told()
""",
    "an optimizer with counts, and with states in lists": """
class Odd(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    def step(self):
        for p in self.param_groups[0]["params"]:
            own = self.state[p]
            odd = torch.zeros_like(p, dtype=torch.bool)
            if not own: own.update(n=torch.tensor(300), odd=odd, sums=[p.detach().float()])
            own["n"] += 1; own["odd"] ^= True; own["sums"][0] -= 0.001 * p.grad.float() * own["odd"]
            p.data.copy_(own["sums"][0])
net.to(torch.bfloat16); optimizer = Odd(net.parameters())
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14)):
    step(torch.full((2, 3), 0.1 * i).bfloat16()); told()
assert {int(s["n"]) for s in optimizer.state.values()} == {314}
""",
    "lists within dicts within what is given": """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1); seen = {"loss": {"train": []}}; mine = seen["loss"]["train"]
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14, also={"seen": seen})):
    step(torch.ones(2, 3)); mine.append(i); told()
assert run.also["seen"]["loss"]["train"] == list(range(14)), run.also
""",
    "weights of a sampler that the loop changes in its own array": """
import numpy
optimizer = torch.optim.SGD(net.parameters(), lr=0.1); weights = numpy.ones(40)
sampler = WeightedRandomSampler(weights, 40)
for x in (run := slurm_hadar.train(net, optimizer, total_steps=24, loader=DataLoader(data, 4, sampler=sampler))):
    step(x); weights[run.step] *= 5; told()
""",
    "generators that a model has in a list": """
class Listed(nn.Module):
    def __init__(self):
        super().__init__(); self.inner = nn.Linear(3, 1); self.dice = [{"a": torch.Generator().manual_seed(4)}]
    def forward(self, x): return self.inner(x + torch.randn(x.shape, generator=self.dice[0]["a"]))
net = Listed(); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14)): step(torch.ones(2, 3), net); told()
""",
    "states that lie in memory by columns": """
class Columns(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    def step(self):
        for p in self.param_groups[0]["params"]:
            own = self.state[p]
            if not own: own.update(q=torch.linalg.eigh(torch.randn(64, 64).cov())[1], by_rows=torch.ones(p.shape))
            own["like"] = torch.ones_like(p)
            p.data -= 0.001 * (own["q"].T @ (own["q"] @ p.grad.flatten(1))).view_as(p) * own["like"]
class Basis:
    def __init__(self): self.q = {}
    def state_dict(self): return self.q
    def load_state_dict(self, state): self.q = state
net = nn.Conv2d(16, 64, 2, bias=False).to(memory_format=torch.channels_last)
optimizer = Columns(net.parameters()); basis = Basis()
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14, also={"basis": basis})):
    basis.q.setdefault("q", torch.randn(5, 4, 3).permute(2, 0, 1))
    step(torch.randn(2, 16, 4, 4), net); told()
print({k: v.stride() for k, v in [*optimizer.state[net.weight].items(), *basis.q.items()]})
""",
    "an optimizer around another, with a state of its own form": """
class Slow(torch.optim.Optimizer):
    def __init__(self, inner): self.inner = inner; super().__init__(inner.param_groups, {}); self.made = 0
    def step(self): self.inner.step(); self.made += 1
    def state_dict(self): return {"made": self.made, "inner": self.inner.state_dict()}
    def load_state_dict(self, state): self.made = state["made"]; self.inner.load_state_dict(state["inner"])
net.to(torch.bfloat16); optimizer = Slow(Master(net.parameters()))
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14)):
    step(torch.full((2, 3), 0.1 * i).bfloat16()); told()
print(optimizer.made)
""",
    "other indices of a subset, and more of them": """
from torch.utils.data import Subset
optimizer = torch.optim.SGD(net.parameters(), lr=0.1); mine = list(range(8)); pools = []
for own in (mine, torch.arange(8)): pools.append(Subset(data, own))
loader = DataLoader(torch.utils.data.ConcatDataset(pools), 4, shuffle=True)
for x in (run := slurm_hadar.train(net, optimizer, total_steps=24, loader=loader)):
    step(x); mine.append(run.step); pools[1].indices = torch.randperm(40)[:8]; told()
assert len(mine) == 32, mine
""",
    "indices of a subset that are another list": """
from torch.utils.data import Subset
optimizer = torch.optim.SGD(net.parameters(), lr=0.1); mine = list(range(8)); pool = Subset(data, mine)
for x in (run := slurm_hadar.train(net, optimizer, total_steps=24, loader=DataLoader(pool, 2, shuffle=True))):
    step(x)
    if run.step % 4 == 3: pool.indices = torch.randperm(40)[:8].tolist()
    told()
assert mine == list(range(8)), mine
""",
    "a sampler that shuffles its lists in place": """
class Buckets(torch.utils.data.Sampler):
    def __init__(self): self.buckets, self.names = [list(range(n, 40, 4)) for n in range(4)], ["a", "b", "c"]
    def __iter__(self):
        random.shuffle(self.names)
        for bucket in self.buckets: random.shuffle(bucket); yield list(bucket[: 1 + self.names.index("b")])
    def __len__(self): return 4
random.seed(0); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in (run := slurm_hadar.train(net, optimizer, total_steps=24, loader=DataLoader(data, batch_sampler=Buckets()))):
    step(x); told()
""",
    "a whole number that is a float": """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in (run := slurm_hadar.train(net, optimizer, total_steps=1.4e1)): step(torch.ones(2, 3)); told()
""",
}
TOLD = {
    "number 1.p in Sequential": "    if run.step == 4: net[1].p = 0.5",
    "buffer 1.mean in Sequential": "    net[1].mean += 1",
    "random number generator dice": "    torch.rand(1, generator=dice)",
    "gradients that SGD has used and that are added to": "    KEPT",
    "numbers of Data": "    data.size += 1.0",
    "random number generator model Sequential.1.dice, made in the loop": "    net[1].dice = torch.Generator()",
    "tensor 1.bank in Sequential": "    net[1].bank = net[1].bank + 1",
    "the model other": "    other.weight.data.mul_(0.9).add_(net[0].weight.detach()[:1], alpha=0.1)",
    "the model self.other": "    mine.other.running_mean += 1",
    "the place in another DataLoader, of list": "    next(more)",
    "2 parameters of Sequential, new or gone": "    if run.step == 4: net.add_module('more', nn.Linear(1, 1))",
}
LOOP = """
dice = torch.Generator()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net[1].register_buffer("mean", torch.zeros(1), persistent=False)
net[1].bank, other, whole = torch.zeros(2), nn.Linear(3, 1), nn.Sequential(net)
test = DataLoader([1, 2, 3]); more = iter(DataLoader([4] * 99))
class Mine:
    def __init__(self): self.other = nn.BatchNorm1d(3); self.run = self.begun()
    def begun(self): return slurm_hadar.train(net, optimizer, total_steps=14, loader=DataLoader(data, 4))
mine = Mine(); run = mine.run
for x in run:
    step(x)
    for y in test: break
    for y in test: net[1].last = net(x)
{}
    told()
"""


@pytest.fixture
def play(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, str, str]]:
    def play(script: str, restart: int, stop: int, name: str = "") -> tuple[int, str, str]:
        env = {**job_env, "SLURM_RESTART_COUNT": str(restart), "HADAR_JOB_DIR": job_env["HADAR_JOB_DIR"] + name}
        started = start_script(TRAINING + script + END, env, str(stop))
        out, err = started.communicate(300)
        return started.returncode, out, err

    return play


@pytest.mark.parametrize("habit", EXACT)
def test_it_goes_on_as_if_undisturbed(habit: str, play: Any) -> None:
    code, expected, said = play(EXACT[habit], 0, -1, "-undisturbed")
    assert code == 0, said
    code, _, said = play(EXACT[habit], 0, 7)
    assert code == -signal.SIGTERM and "is saved" in said and "WARNING" not in said, said
    code, found, said = play(EXACT[habit], 1, -1)
    assert code == 0 and "resumed from gen-0-step-8" in said and "WARNING" not in said, said
    assert found == expected


@pytest.mark.parametrize("what", TOLD)
def test_it_is_told_of(what: str, play: Any) -> None:
    """Before it is lost; and not of a training that does none of it."""
    plain = "data_dice = torch.Generator(); torch.rand(1, generator=data_dice)" + LOOP.format(
        "    net[1].mean.fill_(0)"
    )
    code, _, said = play(plain, 0, 7, "-plain")
    assert code == -signal.SIGTERM and "WARNING" not in said, said
    script = LOOP.format(TOLD[what])
    if "KEPT" in script:
        script = script.replace("    KEPT", "").replace("    step(x)", "    net(x).mean().backward(); optimizer.step()")
    _, _, said = play(script, 0, 7)
    assert f"WARNING: not saved, so a move or a restart sets it back: {what}" in said, said
    assert ("Give train() such a DataLoader as loader=" in said) == ("DataLoader" in what)
    assert ("also={'name'" in said) == ("DataLoader" not in what and "numbers" not in what)


def test_a_model_that_is_of_another_precision_in_the_next_run_goes_on(play: Any) -> None:
    """Also one of ``also=``: its optimizer's state is then of the new one."""
    script = """
critic = nn.Linear(3, 1); kind = torch.bfloat16 if restart else torch.float32; critic.to(kind)
optimizers = [torch.optim.Adam(one.parameters(), lr=0.1) for one in (net, critic)]
for i in (run := slurm_hadar.train(net, optimizers, total_steps=14, also={"critic": critic})):
    step(torch.ones(2, 3), net, optimizers[0]); step(torch.ones(2, 3, dtype=kind), critic, optimizers[1]); told()
print(*(state["exp_avg"].dtype for one in optimizers for state in one.state.values()))
"""
    assert play(script, 0, 7)[0] == -signal.SIGTERM
    code, out, said = play(script, 1, -1)
    assert code == 0 and out.split("end")[0].split() == ["torch.float32"] * 4 + ["torch.bfloat16"] * 2, (out, said)


def test_folds_that_are_left_early_are_not_under_way_at_once(play: Any) -> None:
    """Trainings that take turns are."""
    script = """
def made(name):
    net = nn.Linear(3, 1); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return slurm_hadar.train(net, optimizer, total_steps=9, name=name), net, optimizer
runs = [made(str(n)) for n in range(2)]
for turn in range(TURNS):
    for run, of, optimizer in runs:
        for n, _ in enumerate(run):
            step(torch.ones(2, 3), of, optimizer)
            if n == 2: break
"""
    assert "at once" not in play(script.replace("TURNS", "1"), 0, -1)[2]
    assert "two trainings are under way at once" in play(script.replace("TURNS", "2"), 0, -1, "-turns")[2]


def test_a_save_that_a_signal_asks_for_is_one_between_two_steps(play: Any) -> None:
    """Its handler may be called while a batch is loaded."""
    script = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
signal.signal(signal.SIGUSR1, lambda *_: run.save())
class Loud(Data):
    def __getitem__(self, i):
        drawn = random.random()
        if run.step == 5 and restart == 0: os.kill(os.getpid(), signal.SIGUSR1)
        return super().__getitem__(i) + drawn
random.seed(4)
run = slurm_hadar.train(net, optimizer, total_steps=14, loader=DataLoader(Loud(), 4), async_save=False)
for x in run:
    step(x)
    if run.step == 6 and stop >= 0 and restart == 0: os.kill(os.getpid(), signal.SIGKILL)
"""
    code, expected, said = play(
        script.replace("restart == 0: os.kill(os.getpid(), signal.SIGUSR1)", "False: pass"), 0, -1, "-other"
    )
    assert code == 0, said
    assert play(script, 0, 6)[0] == -signal.SIGKILL
    code, found, said = play(script, 1, -1)
    assert code == 0 and "resumed from gen-0-step-6" in said and found == expected, said


def test_a_loop_that_is_held_in_a_variable_is_saved_at_the_end(play: Any) -> None:
    script = """
from itertools import islice
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
run = slurm_hadar.train(net, optimizer, total_steps=12); loop = iter(run)
print("begins", run.step)
for epoch in range(3):
    for i in islice(loop, 4): step(torch.ones(2, 3))
    run.save()
"""
    assert "begins 0" in play(script, 0, -1)[1]
    code, out, said = play(script, 1, -1)
    assert code == 0 and "begins 12" in out and "gen-0-step-12" in said, said


def test_children_that_are_forked_in_the_loop_can_be_ended(play: Any) -> None:
    script = """
import multiprocessing, time
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in (run := slurm_hadar.train(net, optimizer, total_steps=2)):
    step(torch.ones(2, 3))
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
    child.start()
    if i == 0: child.terminate(); child.join(100); print(child.exitcode)
"""
    code, out, said = play(script, 0, -1)
    assert code == 0 and out.startswith("-15\n"), (out, said)


def test_a_training_that_cannot_hear_is_told_of(play: Any) -> None:
    script = """
import threading
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
run = slurm_hadar.train(net, optimizer, total_steps=3)
thread = threading.Thread(target=lambda: [step(torch.ones(2, 3)) for _ in run])
thread.start(); thread.join()
"""
    assert "WARNING: this training is not in the main thread" in play(script, 0, -1)[2]
    code, _, said = play("slurm_hadar.train(net, torch.optim.SGD(net.parameters(), lr=0.1), total_steps=1.5)", 0, -1)
    assert code == 1 and "total_steps=1.5 is no whole number" in said


def test_an_older_checkpoint_of_the_scripts_own_is_told_of_where_it_is_loaded_over_ours(play: Any) -> None:
    """It is the script's way to go on where nobody saves for it."""
    own = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1); older = {k: t + 1 for k, t in net.state_dict().items()}
run = slurm_hadar.train(net, optimizer, total_steps=14)
if restart: net.load_state_dict(older)
for i in run: step(torch.ones(2, 3)); told()
"""
    _, _, said = play(own, 0, 7)
    assert "WARNING" not in said, said
    code, _, said = play(own, 1, -1)
    assert code == 0 and said.count("WARNING: weights were changed between train() and the loop") == 1, said


@pytest.mark.parametrize("first", ["numpy.random.seed(3)", "numpy.random.seed()"])
def test_numbers_that_nobody_has_drawn_say_nothing(first: str, play: Any) -> None:
    """NumPy's generator is another in each process, and so it is where nobody has seeded it."""
    script = f"""
import numpy
{first}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14)): step(torch.ones(2, 3)); told()
"""
    for restart, stop in ((0, 7), (1, -1)):
        said = play(script, restart, stop)[2]
        assert "WARNING" not in said, said


@pytest.mark.parametrize("seeded", [True, False])
def test_chance_before_the_training_is_told_of_if_it_is_another(seeded: bool, play: Any) -> None:
    """A split without a seed trains on what was held out."""
    split = """
import numpy
from torch.utils.data import random_split
SEED
numpy.random.rand(1)
mine, held_out = random_split(data, [20, 20])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in (run := slurm_hadar.train(net, optimizer, total_steps=14, loader=DataLoader(mine, 4))): step(x); told()
"""
    split = split.replace("SEED", "numpy.random.seed(0)" if seeded else "torch.seed(); numpy.random.seed()")
    code, _, said = play(split, 0, 7)
    assert code == -signal.SIGTERM and "WARNING" not in said, said
    code, _, said = play(split, 1, -1)
    assert code == 0 and "resumed" in said, said
    assert ("WARNING" not in said) is seeded, said
    told = [line for line in said.splitlines() if "WARNING" in line]
    assert seeded or ("another subset" in told[0] and "from numpy.random before train()" in told[1]), said
    assert seeded or "if data were split or shuffled by them, they are so otherwise now" in told[1]


@pytest.mark.parametrize("seeded", [True, False])
def test_numbers_that_a_library_may_have_drawn_are_told_of_in_true_words(seeded: bool, play: Any) -> None:
    """When it was imported, as rich does: nobody can tell them from the script's own. What is advised helps."""
    script = f"""
random.seed(); random.random()
{"random.seed(0)" if seeded else ""}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in (run := slurm_hadar.train(net, optimizer, total_steps=14)): step(torch.ones(2, 3)); told()
"""
    said = [play(script, restart, stop)[2] for restart, stop in ((0, 7), (1, -1))][1]
    assert seeded is ("WARNING" not in said), said
    assert seeded or "if only a library drew some when it was imported, nothing is lost" in said
