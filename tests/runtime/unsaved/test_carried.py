"""Plain tensors and arrays that a script carries from turn to turn: told of before they are lost, with what helps; and
no word of what begins anew in each turn."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BEGIN = """
import collections, os, random, signal, sys, numpy as np, torch, slurm_hadar
from torch import nn
restart, stop = int(os.environ["SLURM_RESTART_COUNT"]), int(sys.argv[1])
torch.manual_seed(0); torch.set_num_threads(1); random.seed(0); np.random.seed(0)
net = nn.Linear(3, 3); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def told():
    if restart == 0 and stop >= 0 and run.step == stop: os.kill(os.getpid(), signal.SIGTERM)
def step(x): optimizer.zero_grad(); y = net(x); y.square().mean().backward(); optimizer.step(); return y
def train(**more): return slurm_hadar.train(net, optimizer, total_steps=14, **more)
def drawn(): return torch.randn(2, 3)
class Arrays(collections.abc.MutableMapping):
    def __init__(self, **own): self.own = own
    def __getitem__(self, name): return self.own[name]
    def __setitem__(self, name, value): self.own[name] = value
    def __delitem__(self, name): del self.own[name]
    def __iter__(self): return iter(self.own)
    def __len__(self): return len(self.own["y"])
"""
#: The variables told of; what is before the loop, what is in it; and the same with what is advised.
CARRIED = {
    "the tuple hidden": (
        "hidden = (torch.zeros(1, 3), torch.zeros(1, 3))",
        "hidden = tuple(h.detach() for h in hidden)\n"
        "    hidden = (net(hidden[1]), net(drawn() + hidden[0])[:1]); step(hidden[1])",
        "state={'hidden': hidden}",
        "hidden = tuple(h.detach() for h in run.state['hidden'])\n"
        "    hidden = (net(hidden[1]), net(drawn() + hidden[0])[:1])\n"
        "    run.state['hidden'] = tuple(h.detach() for h in hidden); step(hidden[1])",
    ),
    "the tensor X": (
        "X = drawn()",
        "step(X); X = drawn()",
        "state={'X': X}",
        "step(run.state['X']); run.state['X'] = drawn()",
    ),
    "the dict ema": (
        "ema = {k: t.clone() for k, t in net.state_dict().items()}",
        "step(drawn() + ema['bias'])\n    for k, t in net.state_dict().items(): ema[k].data.lerp_(t, 0.1)",
        "state={'ema': ema}",
        None,
    ),
    "the deque memory": (
        "memory = collections.deque(maxlen=5)",
        "memory.append((np.random.randn(3).astype('f'), 1)); step(torch.tensor(np.array([m[0] for m in memory])))",
        "state={'memory': (memory := [])}",
        "memory.append((np.random.randn(3).astype('f'), 1)); del memory[:-5]; "
        "step(torch.tensor(np.array([m[0] for m in memory])))",
    ),
    "the Arrays memory": (  # as TensorDict: a mapping whose length is that of its arrays
        "memory = Arrays(x=torch.zeros(20, 3), y=torch.zeros(20))",
        "memory.own['x'][i] = drawn()[0]; step(memory.own['x'][:i + 1])",
        "state={'memory': memory.own}",
        "memory.own['x'][i] = run.state['memory']['x'][i] = drawn()[0]; step(run.state['memory']['x'][:i + 1])",
    ),
    "the array s": (
        "s = np.zeros(3, np.float32)",
        "s = 0.9 * s + np.random.randn(3).astype('f'); step(torch.from_numpy(s))",
        "state={'s': s}",
        "s = 0.9 * run.state['s'] + np.random.randn(3).astype('f')\n    run.state['s'] = s; step(torch.from_numpy(s))",
    ),
}
#: Memories in classes of the script's own: what is told of, and the same with what is advised.
MEMORIES = {
    "the deque memory.kept": """
class Memory:
    def __init__(self): self.kept = collections.deque(maxlen=50)
    def add(self, *one): self.kept.append(one)
    def draw(self): return torch.stack([x for x, _ in random.sample(self.kept, min(3, len(self.kept)))])
    {}
    def __len__(self): return len(self.kept)
memory = Memory()
def turn(i): memory.add(drawn()[0], torch.tensor(i)); step(memory.draw())
""",
    "the array agent.memory.kept": """
class Memory:
    def __init__(self): self.kept, self.at = np.zeros((50, 3), np.float32), 0
    def add(self, one): self.kept[self.at] = one; self.at += 1
    def draw(self): return torch.from_numpy(self.kept[np.random.randint(0, self.at, 3)])
    {}
class Agent:
    def __init__(self): self.memory = Memory()
agent = Agent();
def turn(i): agent.memory.add(np.random.randn(3)); step(agent.memory.draw())
""",
}
REMEMBERED = {
    "the deque memory.kept": (
        "def state_dict(self): return {'kept': list(self.kept)}\n"
        "    def load_state_dict(self, state): self.kept.extend(state['kept'])",
        "also={'memory': memory}",
    ),
    "the array agent.memory.kept": (
        "def state_dict(self): return {'kept': self.kept, 'at': self.at}\n"
        "    def load_state_dict(self, state): self.kept, self.at = state['kept'], state['at']",
        "also={'memory': agent.memory}",
    ),
}
LOOP = "\nfor i in run:\n    {}\n    told()\n"
END = "\nprint('end', run.step, torch.cat([t.flatten() for t in net.state_dict().values()]).tolist())\n"
IN_A_FUNCTION = """
def epoch(run, bank):
    for i in run:
        y = step(drawn() + bank[:2]); bank[i % 4] = y[0].detach(); told()
def main():
    global run
    bank = torch.zeros(4, 3)
    run = train()
    epoch(run, bank)
main()
"""
IN_AN_OBJECT = """
class Trainer:
    def fit(self):
        global run
        self.x = drawn(); self.y = drawn()
        run = train()
        for i in run: step(self.x); self.x = drawn(); self.y = drawn(); told()
Trainer().fit()
"""
#: What begins anew in each turn, is given, or is no more than a log; and what was looked at before the loop.
SILENT = """
from torch.utils.data import DataLoader
data = [(torch.full((3,), float(i)), i) for i in range(40)]
loader = DataLoader(data, 4)
x, y = next(iter(loader)); batch = [x, y]; output = net(x); loss = output.mean(); features, seen = {{}}, {{"all": []}}
running, total, losses, numbers, best = torch.zeros(1), torch.tensor(0.0), [], [], None
static, half, mask, fixed = torch.zeros(4, 3), torch.zeros(4, 3), torch.ones(3), torch.randn(4, 3)
weights, mine, views = net.weight, list(net.parameters()), [p.detach() for p in net.parameters()]
noise = np.zeros(3); state = {{"centre": torch.zeros(3)}}; centre = state["centre"]; lines = collections.deque(maxlen=3)
net.register_forward_hook(lambda _m, _i, o: features.update(out=o, flat=o.flatten()))
class Odd:
    __slots__ = ()
    def __getattr__(self, name): raise RuntimeError(name)
odd, nothing = Odd(), torch.empty(0, 3)
class Kept:  # a hook's output, losses, a score that begins anew, a data set's cache
    def __init__(self): self.out, self.losses, self.whole = torch.zeros(4, 3), [], np.zeros(3)
class Score(Kept):
    def compute(self): return self.whole
    def reset(self): self.whole[:] = 0
class Cached(Kept):
    def __getitem__(self, n): self.whole += 1; return n
held, score, cached = Kept(), Score(), Cached()
def main(x, y):
    global run, loss, output
    kept = x; hparams = locals()
    run = slurm_hadar.train(net, optimizer, total_steps=14, loader=loader, state=state, also={{"seen": seen}})
    for batch in run:
        x, y = batch
        noise = np.random.randn(3); mask = torch.ones(3)
        static.copy_(x); half[:] = 0.5 * x
        output = step(static * mask + half + run.state["centre"]); loss = output.mean()
        centre = 0.9 * run.state["centre"] + 0.1; run.state["centre"] = centre
        running.add_(loss.detach()); total.add_(loss.detach()); losses.append(loss.detach()); numbers.append(i := 1.0)
        held.out, score.whole[0] = output.detach(), i; held.losses.append(loss.detach()); cached[0]
        lines.append("text"); seen["all"].append(1); best = {{k: t.clone() for k, t in net.state_dict().items()}}
        told()
    assert set(hparams) >= {{"x", "y", "kept"}} and hparams["kept"] is kept
    return x, y, noise, best, loss
{}
"""
SILENT_CALLS = ("main(x, y)", "(lambda: main(x, y))()")


@pytest.fixture
def play(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, str, str]]:
    def play(script: str, restart: int, stop: int, name: str = "") -> tuple[int, str, str]:
        env = {**job_env, "SLURM_RESTART_COUNT": str(restart), "HADAR_JOB_DIR": job_env["HADAR_JOB_DIR"] + name}
        started = start_script(BEGIN + script + END, env, str(stop))
        out, err = started.communicate(300)
        return started.returncode, out, err

    return play


@pytest.mark.parametrize("what", CARRIED)
def test_it_is_told_of_and_what_is_advised_helps(what: str, play: Any) -> None:
    before, within, state, advised = CARRIED[what]
    code, expected, said = play(before + "\nrun = train()" + LOOP.format(within), 0, -1, "-undisturbed")
    assert code == 0 and said.count("WARNING") == 1, said
    for stop in (2, 7):
        said = play(before + "\nrun = train()" + LOOP.format(within), 0, stop, f"-{stop}")[2]
        assert f"WARNING: not saved, so a move or a restart sets it back: {what}" in said, said

    script = before + f"\nrun = train({state})" + LOOP.format(advised or within)
    code, _, said = play(script, 0, 7)
    assert code == -signal.SIGTERM and "WARNING" not in said, said
    code, found, said = play(script, 1, -1)
    assert code == 0 and "resumed from gen-0-step-8" in said and "WARNING" not in said, said
    assert found == expected


@pytest.mark.parametrize("what", MEMORIES)
def test_what_an_object_remembers_is_told_of_and_what_is_advised_helps(what: str, play: Any) -> None:
    """One that has no state that could be asked for, and one that is held by another."""
    loop = "\nrun = train({})" + LOOP.format("turn(i)")
    forgets, (methods, also) = MEMORIES[what].format(""), REMEMBERED[what]
    code, expected, said = play(forgets + loop.format(""), 0, -1, "-undisturbed")
    assert code == 0 and said.count("WARNING") == 1, said
    said = play(forgets + loop.format(""), 0, 7, "-told")[2]
    assert f"sets it back: {what}. Write the methods" in said and f"train() as {also};" in said, said
    remembers = MEMORIES[what].format(methods) + loop.format(also)
    code, _, said = play(remembers, 0, 7)
    assert code == -signal.SIGTERM and "WARNING" not in said, said
    code, found, said = play(remembers, 1, -1)
    assert code == 0 and "WARNING" not in said, said
    assert found == expected


@pytest.mark.parametrize(("what", "script"), [("the tensor bank", IN_A_FUNCTION), ("the tensor self.x", IN_AN_OBJECT)])
def test_it_is_told_of_where_it_is_held_otherwise(what: str, script: str, play: Any) -> None:
    said = play(script, 0, 7)[2]
    (line,) = [line for line in said.splitlines() if "WARNING" in line]
    assert f"sets it back: {what}. Give" in line


def test_an_object_that_several_functions_have_is_named_once(play: Any) -> None:
    """As that which has it where train() is called does; and each advice is a sentence."""
    script = """
class Memory:
    def __init__(self): self.kept = []
class Learner:
    def __init__(self, memory): self.memory, self.last = memory, drawn()
    def learn(self):
        for i in run: self.memory.kept.append(drawn()); step(self.last); self.last = drawn(); told()
def main():
    global run
    learner = Learner(Memory())
    run = slurm_hadar.train(net, optimizer, total_steps=14)
    learner.learn()
main()
"""
    (line,) = [line for line in play(script, 0, 7)[2].splitlines() if "WARNING" in line]
    assert "sets it back: the list learner.memory.kept, the tensor self.last. Give" in line, line
    assert "run.state['last']. Write the methods" in line and "as also={'memory': learner.memory};" in line, line


@pytest.mark.parametrize("call", SILENT_CALLS)
def test_no_word_of_what_begins_anew_in_each_turn(call: str, play: Any) -> None:
    code, _, said = play(SILENT.format(call), 0, -1)
    assert code == 0 and "WARNING" not in said, said


def test_no_word_of_what_the_module_itself_begins_anew_in_each_turn(play: Any) -> None:
    """There a function's variables are those of the module."""
    lines = SILENT.format("").partition("def main(x, y):")
    body = [line[4:] for line in lines[2].splitlines() if not line.lstrip().startswith(("global", "return", "kept"))]
    script = lines[0] + "\n".join(line for line in body if "hparams" not in line)
    code, _, said = play(script, 0, -1)
    assert code == 0 and "WARNING" not in said, said


def test_no_function_keeps_what_is_not_needed_any_more(play: Any) -> None:
    """A frame's variables that were asked for are kept by it, until Python 3.12; and they stay where a debugger, or
    what measures coverage, has asked for them too, so none does here."""
    script = """
import gc, weakref
sys.settrace(None)
def main():
    global run
    hidden = torch.zeros(2, 3); made = []
    run = train()
    for i in run:
        output = step(drawn()); made.append(weakref.ref(output)); told()
    del output
    gc.collect()
    return [one() for one in made]
print(main().count(None))
"""
    code, out, said = play(script, 0, -1)
    assert code == 0 and out.startswith("14\n"), (out, said)
