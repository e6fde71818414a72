"""Numbers of a script's own that go on from epoch to epoch or from turn to turn, as a best value and a patience: told
of before they are lost, with what helps; and no word of what begins anew now and then, nor of what is saved."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BEGIN = """
import os, signal, sys, torch, slurm_hadar
torch.manual_seed(0); torch.set_num_threads(1)
net = torch.nn.Linear(3, 1); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    optimizer.zero_grad(); loss = net(torch.randn(4, 3)).square().mean(); loss.backward(); optimizer.step()
    if run.step == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
    return loss.item()
def train(**more): return slurm_hadar.train(net, optimizer, total_steps=12, loader=list(range(3)), **more)
class Stopper:
    def __init__(self): self.best, self.count = None, 0
    def __call__(self, value):
        if self.best is None or value > self.best: self.best = value
        else: self.count += 1
class Kept(Stopper):
    def state_dict(self): return dict(vars(self))
    def load_state_dict(self, state): vars(self).update(state)
class History:
    def __init__(self): self.kept, self.last = {"loss": []}, {"loss": 0.0}
    def add(self, value): self.kept["loss"].append(value); self.last = {"loss": value}
steps_done, calls = 0, 0
def act():
    global steps_done, calls
    steps_done += 1; calls = steps_done
class Meter:
    def __init__(self): self.reset()
    def reset(self): self.sum = 0.0
    def update(self, value): self.sum += value; self.last = value
"""
EPOCHS = """
    for epoch, batches in run.epochs():
        {before}
        for batch in batches: loss = step(); {within}
        {behind}
"""
#: What is before train(), what is given to it, and what the epochs do at their beginning, in a turn, and at their end.
TOLD = {
    "best": ("best = 9.0", "", "pass", "pass", "if loss < best: best = loss"),
    "no_better, best": ("best, no_better = 0.0, 0", "", "pass", "pass", "best = max(best, loss); no_better += 1"),
    "steps": ("steps = 0", "", "pass", "steps += 1", "pass"),
    "losses": ("losses = []", "", "pass", "pass", "losses.append(loss)"),
    "history": ("history = {'loss': []}", "", "pass", "pass", "history['loss'].append(loss)"),
    "steps_done": ("", "", "pass", "act()", "pass"),
    "history.kept": ("history = History()", "", "pass", "pass", "history.add(loss)"),
    "stopper.best, stopper.count": ("stopper = Stopper()", "", "pass", "pass", "stopper(epoch % 2)"),
}
SILENT = {
    "a sum of each epoch": ("total = 0", "", "total = 0", "total += loss", "mean = total / 3"),
    "an output": ("loss = None", "", "pass", "pass", "best = loss"),
    "a meter": ("meter = Meter()", "", "meter.reset()", "meter.update(loss)", "pass"),
    "a meter that is set back before it is used": ("m = Meter()", "", "pass", "pass", "m.reset(); m.update(epoch)"),
    "a meter that is set back behind": ("meter = Meter()", "", "pass", "meter.update(loss)", "meter.reset()"),
    "a list that is given": ("losses = []", "also={'losses': losses}", "pass", "pass", "losses.append(loss)"),
    "a number that is given": ("", "also={'best': 9.0}", "best = run.also['best']", "pass", "run.also['best'] = loss"),
    "a count that is given": ("", "also={'n': 0}", "pass", "pass", "run.also['n'] += 1; n = run.also['n']"),
    "an object that is given": ("stopper = Kept()", "also={'stopper': stopper}", "pass", "pass", "stopper(epoch % 2)"),
}


@pytest.fixture
def play(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, str]]:
    def play(case: tuple[str, ...], stop: int, restart: int = 0, function: bool = True) -> tuple[int, str]:
        before, given, at_first, within, behind = case
        body = f"    global run\n    {before}\n    run = train({given})"
        body += EPOCHS.format(before=at_first, within=within, behind=behind)
        script = f"def main():\n{body}main()\n" if function else f"if True:\n{body.replace('global run', '')}"
        env = {**job_env, "SLURM_RESTART_COUNT": str(restart)}
        started = start_script(BEGIN + script, env, str(stop))
        said = started.communicate(300)[1]
        return started.returncode, said

    return play


@pytest.mark.parametrize("function", [True, False])
@pytest.mark.parametrize("what", TOLD)
def test_what_is_counted_from_epoch_to_epoch_is_told_of(what: str, function: bool, play: Any) -> None:
    code, said = play(TOLD[what], 9, function=function)
    assert code == -signal.SIGTERM and said.count("WARNING") == 1, said
    (line,) = [line for line in said.splitlines() if "WARNING" in line]
    names = line.partition("sets it back: ")[2].partition(". ")[0].split(", ")
    assert sorted(names) == sorted(what.split(", ")), line
    assert ("to train() as also=" in line) and ("state_dict()" in line) == ("." in what), line


def test_a_variable_is_told_of_before_the_first_epoch_is_saved(play: Any) -> None:
    code, said = play(TOLD["best"], 2)
    assert code == -signal.SIGTERM and said.count("sets it back: best. Give") == said.count("WARNING") == 1, said


@pytest.mark.parametrize("function", [True, False])
@pytest.mark.parametrize("what", SILENT)
def test_no_word_of_what_each_epoch_begins_anew_and_of_what_is_saved(what: str, function: bool, play: Any) -> None:
    code, said = play(SILENT[what], 9, function=function)
    assert code == -signal.SIGTERM and "WARNING" not in said, said
    code, said = play(SILENT[what], -1, 1, function=function)
    assert code == 0 and "resumed from gen-0-step-10" in said and "WARNING" not in said, said


@pytest.mark.parametrize("what", ["act()", "pass"])
def test_what_a_function_adds_to_is_told_of_in_any_loop(what: str, job_env: Any, start_script: Any) -> None:
    """As the steps that an exploration goes by."""
    script = f"{BEGIN}for i in (run := train()): step(); {what}"
    said = start_script(script, {**job_env, "SLURM_RESTART_COUNT": "0"}, "5").communicate(300)[1]
    assert said.count("sets it back: steps_done. Give it") == said.count("WARNING") == (what == "act()"), said


class Case(NamedTuple):
    """What is before train(), what is given to it, what each turn does, and what is said to be lost."""

    before: str
    turn: str
    told: str = ""
    given: str = ""


FLAT = {
    "a best value and its patience": Case(
        "best, bad = 9.0, 0",
        "if loss < best:\n  best = loss; bad = 0\nelse: bad += 1",
        "best, bad",
    ),
    "an exploration": Case("epsilon = 1.0", "greedy = epsilon < 0.5; epsilon *= 0.99", "epsilon"),
    "a smoothed loss": Case("ema = None", "ema = loss if ema is None else 0.9 * ema + 0.1 * loss", "ema"),
    "losses": Case("losses = []", "losses.append(loss)", "losses"),
    "a sum that is never set back": Case("total = 0.0", "total += loss", "total"),
    "numbers in a dict": Case("kept = {'best': 9.0}", "kept['best'] = min(kept['best'], loss)", "kept"),
    "an object that the loop changes": Case("agent = Agent()", "agent.act(); agent.eps *= 0.99", "agent.eps"),
    "an object that counts": Case("agent = Agent()", "agent.count()", "agent.n"),
    "a place that is reckoned with": Case("last = 0", "if run.step - last >= 2: last = run.step", "last"),
    "of an iterator": Case("best = 9.0; bar = iter", "best = min(best, loss)", "best"),
    "a sum that is printed at times": Case("total = 0.0", "total += loss\nif run.step % 2: print(total); total = 0.0"),
    "two that are set back at once": Case("a, b = 0, 0", "a += 1; b += loss\nif a == 2: a, b = 0, 0"),
    "a window that is emptied": Case("seen = []", "seen.append(loss)\nif len(seen) == 3: seen.clear()"),
    "sums in a dict that is made anew": Case(
        "sums = {'a': 0.0}", "sums['a'] += loss\nif run.step % 3 == 2: sums = {k: 0.0 for k in sums}"
    ),
    "a tensor's sum": Case("total = torch.zeros(())", "total += loss\nif run.step % 2: print(total); total.zero_()"),
    "a list within what is given": Case("inner = lists['a']['b']", "inner.append(loss)", given="also={'lists': lists}"),
    "a clock": Case("t0 = time.time()", "t1 = time.time(); took = t1 - t0; t0 = t1"),
    "a timer": Case("t0 = perf_counter()", "took = perf_counter() - t0\nif took > 0: t0 = perf_counter()"),
    "a switch": Case("first = True", "if first: first = False"),
    "the epoch before": Case("last = -1", "if run.epoch != last: last = run.epoch"),
    "a meter without reset": Case("meter = Agent()", "meter.add(loss)\nif run.step % 2: meter.mean()"),
    "a meter that is made anew": Case("meter = Agent()", "meter.count()\nif run.step % 2: meter = Agent()"),
    "a function's sum that is set back": Case("", "act()\nif run.step % 2:\n  steps_done = 0"),
    "a number that is given": Case(
        "", "best = run.also['best']\nif loss < best: run.also['best'] = loss", given="also={'best': 9.0}"
    ),
}
IN = {
    "module": "{before}\nrun = train({given})\nfor batch in bar(run):\n  loss = step()\n{turn}",
    "function": "def main():\n global run, steps_done\n {before}\n run = train({given})\n for batch in bar(run):\n"
    "  loss = step()\n{turn}\nmain()",
    "function that is given the run": "def fit(run):\n global steps_done\n {before}\n for batch in bar(run):\n"
    "  loss = step()\n{turn}\nrun = train({given}); fit(run)",
    "loop around": "{before}\nrun = train({given})\nwhile run.step < 11:\n for batch in bar(run):\n"
    "  loss = step()\n{turn}\n  if run.step % 6 == 5: break",
}
AGENT = """
import time
from time import perf_counter
bar = lambda run: run
lists = {'a': {'b': []}}
class Agent:
    def __init__(self): self.eps, self.n, self.sum = 1.0, 0, 0.0
    def act(self): return self.eps < 0.5
    def count(self): self.n += 1
    def add(self, value): self.sum += value
    def mean(self): mean = self.sum / 2; self.sum = 0.0; return mean
"""


@pytest.mark.parametrize("around", IN)
@pytest.mark.parametrize("what", FLAT)
def test_what_goes_on_in_a_loop_over_the_run_is_told_of(
    what: str, around: str, job_env: Any, start_script: Any
) -> None:
    case = FLAT[what]
    names = {"before": case.before or "pass", "given": case.given, "turn": textwrap.indent(case.turn, "  ")}
    env = {**job_env, "SLURM_RESTART_COUNT": "0"}
    said = start_script(BEGIN + AGENT + IN[around].format(**names), env, "-1").communicate(300)[1]
    assert "Error" not in said and said.count("WARNING") == bool(case.told), said
    names_told = said.partition("sets it back: ")[2].partition(". ")[0].split(", ")
    assert sorted(names_told) == sorted(case.told.split(", ")), said


def test_a_count_of_turns_is_named_as_such(job_env: Any, start_script: Any) -> None:
    script = f"{BEGIN}n = 0\nfor i in (run := train()): step(); n += 1"
    said = start_script(script, {**job_env, "SLURM_RESTART_COUNT": "0"}, "-1").communicate(300)[1]
    assert "sets it back: n. For n take run.step, which counts" in said and said.count("WARNING") == 1, said


def test_no_word_of_a_count_that_begins_at_the_runs_step(job_env: Any, start_script: Any) -> None:
    script = f"{BEGIN}run = train(); n = run.step\nfor i in run: step(); n += 1"
    said = start_script(script, {**job_env, "SLURM_RESTART_COUNT": "0"}, "-1").communicate(300)[1]
    assert "WARNING" not in said, said


def test_an_object_that_goes_through_the_loop_itself(job_env: Any, start_script: Any) -> None:
    script = f"""{BEGIN}
class Trainer:
    def fit(self):
        global run
        self.best, self.sum = 9.0, 0.0
        for batch in (run := train()):
            loss = step(); self.sum += loss
            if run.step % 2: self.sum = 0.0
            if loss < self.best: self.best = loss
Trainer().fit()
"""
    said = start_script(script, {**job_env, "SLURM_RESTART_COUNT": "0"}, "-1").communicate(300)[1]
    assert "sets it back: self.best. What self" in said and said.count("WARNING") == 1, said
