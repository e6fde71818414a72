"""How a training ends: told to in the midst of things, left by ``break``, or followed by another one."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.conftest import wait_for

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAINING = """
import os, signal, sys
import torch, slurm_hadar
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def step(optimizer=optimizer):
    optimizer.zero_grad(); model(torch.randn(4, 3)).square().mean().backward(); optimizer.step()
"""


@pytest.fixture
def run(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, str, str]]:
    def run(script: str, restart: int = 0) -> tuple[int, str, str]:
        started = start_script(TRAINING + script, {**job_env, "SLURM_RESTART_COUNT": str(restart)})
        out, err = started.communicate(300)
        return started.returncode, out, err

    return run


def test_workers_of_a_loader_outlive_the_signal_to_the_whole_job(run: Any) -> None:
    """Slurm sends SIGTERM to all processes; the step is finished and saved, and the workers are gone with it."""
    script = """
os.setsid()
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 3)), batch_size=4, num_workers=2)
for _ in (run := slurm_hadar.train(model, optimizer, total_steps=200, loader=loader)):
    step()
    if run.step == 20: os.killpg(0, signal.SIGTERM)
    if run.step >= 20: import time; time.sleep(0.5)
"""
    code, _, said = run(script)
    assert code == -signal.SIGTERM and "hadar: told to end (SIGTERM); step" in said, said
    assert "worker" not in said


@pytest.mark.parametrize("own", [False, True])
def test_what_tells_that_the_time_is_nearly_over_is_a_wish_to_save(run: Any, own: bool) -> None:
    """SIGUSR1, of which a training ended; a handler of the script's own stays."""
    script = """
if OWN: signal.signal(signal.SIGUSR1, lambda *_: print("own"))
for _ in (run := slurm_hadar.train(model, optimizer, total_steps=60, async_save=False)):
    step()
    if run.step == 30: os.kill(os.getpid(), signal.SIGUSR1)
    if run.step == 32: print(run._saver.saved_step); break
"""
    assert run(script.replace("OWN", str(own)))[:2] == (0, "own\nNone\n" if own else "31\n")


def test_what_was_written_before_the_end_is_on_disk(run: Any, tmp_path: Path) -> None:
    """Neither printed lines nor those of a file that is open are lost: the steps that they tell of are not repeated."""
    script = f"""
file, other = open({str(tmp_path / "log.csv")!r}, "a"), open({str(tmp_path / "log.bin")!r}, "a+b")
for number in (run := slurm_hadar.train(model, optimizer, total_steps=60)):
    step(); print("step", number); file.write(f"{{number}}\\n"); other.write(b"%d\\n" % number)
    if run.step == 30 and {{restart}} == 0: os.kill(os.getpid(), signal.SIGTERM)
file.close(); other.close()
"""
    told = [
        line for restart in (0, 1) for line in run(script.replace("{restart}", str(restart)), restart)[1].split("\n")
    ]
    assert [line for line in told if line] == [f"step {n}" for n in range(60)]
    for name in ("log.csv", "log.bin"):
        assert (tmp_path / name).read_text().split() == [str(n) for n in range(60)]


def test_a_step_that_breaks_off_the_loop_is_one_like_others(run: Any) -> None:
    """It is counted, can be saved, and is saved where the job is told to end within it."""
    save = "\nrun.save(); print(run.step, run._saver.saved_step)"
    loop = "for _ in (run := slurm_hadar.train(model, optimizer, total_steps=60)):\n    step()\n    if run.step "
    assert run(loop + "== 9: break" + save)[1].split() == ["10", "10"]
    code, _, said = run(loop + "== 14: os.kill(os.getpid(), signal.SIGTERM); break" + save, 1)
    assert code == -signal.SIGTERM and "resumed from gen-0-step-10" in said and "nothing" not in said
    assert "resumed from gen-1-step-15" in run(loop + "== 20: break" + save, 2)[2]


@pytest.mark.parametrize(
    ("left", "steps", "then"),
    [
        ("if run.step == 3: run.save(); break\n    step()", 3, 6),
        ("step()\n    if run.step == 3: run.save(); break", 4, 8),
    ],
    ids=["before the step", "behind it"],
)
@pytest.mark.parametrize("loader", ["DataLoader(data, batch_size=2)", "lambda: list(data.split(2))"])
def test_a_save_and_a_break_in_one_turn(run: Any, left: str, steps: int, then: int, loader: str) -> None:
    """It is saved, and the next run goes on with the first batch that no step was made of."""
    loop = f"""
from torch.utils.data import DataLoader
data = torch.arange(40)
for batch in (run := slurm_hadar.train(model, optimizer, total_steps=20, loader={loader})):
    print(batch.tolist()[0])
    """
    run(loop + left)
    out, said = run(loop + "step()", 1)[1:]
    assert f"resumed from gen-0-step-{steps}" in said
    assert out.split() == [str(n) for n in range(then, 40, 2)]


EPOCHS = """
data = list(torch.arange(12).split(2))
run = slurm_hadar.train(model, optimizer, total_steps=20, loader=data, save_every_steps=1, async_save=False)
for epoch in range(4):
    for batch in run:
        if run.epoch != epoch: break
        print(run.epoch, batch.tolist()[0], flush=True)
        {step}
        if run.step == 7 and {stops}: os._exit(9)
"""


@pytest.mark.parametrize(
    "step", ["step()", "(step if run.step % 3 == 2 else lambda: model(torch.ones(3)).backward())()"]
)
@pytest.mark.parametrize("stops", [False, True])
def test_a_loop_over_epochs_around_ours_leaves_no_batch_out(run: Any, step: str, stops: bool) -> None:
    """It looks at the first batch of the next epoch, and leaves; also a run that is resumed, and in the midst of an
    accumulation."""
    told, said, code = [], "", 1
    for restart in (0, 1) if stops else (0,):
        code, out, said = run(EPOCHS.replace("{step}", step).replace("{stops}", str(stops and not restart)), restart)
        told += out.splitlines()
    expected = [f"{n // 6} {n % 6 * 2}" for n in range(20)]
    assert code == 0 and "WARNING" not in said
    assert list(dict.fromkeys(told)) == expected and len(told) <= len(expected) + 3 * stops


def test_told_to_end_where_nothing_can_be_saved(run: Any) -> None:
    """It says so, and shows the error that kept the step from being finished."""
    loop = "for _ in (run := slurm_hadar.train(model, optimizer, total_steps=60)):\n"
    half = (
        "    if run.step == 9: os.kill(os.getpid(), signal.SIGTERM); model(torch.ones(3)).backward(); break\n    step()"
    )
    code, _, said = run(loop + half)
    assert code == -signal.SIGTERM and "nothing could be saved: goes on from the last checkpoint" in said


VALIDATED = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(24, 3))
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
loader = DataLoader(data, batch_size=4, shuffle=True)
run = slurm_hadar.train(model, optimizer, total_steps=24, loader=loader, scheduler=schedule)
def told(at): {stops} and at == {where!r} and run.step == 12 and os.kill(os.getpid(), signal.SIGTERM)
for epoch in range(run.epoch, 4):
    for (x,) in run:
        if run.epoch != epoch: told("break"); break
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    with torch.no_grad():
        for x in DataLoader(data, batch_size=4, num_workers=1): told("validation"); model(x[0])
    schedule.step()
    {save}
print(model.weight.tolist(), schedule.get_last_lr())
"""


@pytest.mark.parametrize("save", ["", "run.save()"])
@pytest.mark.parametrize("where", ["break", "validation"])
def test_told_to_end_between_two_passes_of_the_loop(run: Any, where: str, save: str) -> None:
    """In the turn that looks at the next epoch, or while that one is validated: nothing is lost, and the order of the
    next epoch stays."""
    script = VALIDATED.replace("{save}", save).replace("{where!r}", repr(where))
    expected = run(script.replace("{stops}", "False").replace("total_steps=24", "total_steps=24, name='other'"))[1]
    code, _, said = run(script.replace("{stops}", "True"))
    assert code == -signal.SIGTERM and said.endswith("hadar: told to end (SIGTERM); step 12 is saved\n"), said
    assert ("outside of the loop: what no checkpoint has yet is saved if" in said) == (where == "validation")
    code, found, said = run(script.replace("{stops}", "False"), 1)
    assert code == 0 and "resumed from gen-0-step-12" in said and found == expected


def test_told_to_end_outside_of_the_loop_while_gradients_wait(run: Any) -> None:
    """It is saved after the next turn in which they are used."""
    script = """
for epoch in range(4):
    for _ in (run := slurm_hadar.train(model, optimizer, total_steps=40)) if epoch == 0 else run:
        if run.step % 6 == 5 and run.step // 6 == epoch: break
        model(torch.ones(3)).backward()
        if run.step % 4 == 3: optimizer.step(); optimizer.zero_grad()
    if epoch == 0: os.kill(os.getpid(), signal.SIGTERM)
"""
    code, _, said = run(script)
    assert code == -signal.SIGTERM and said.endswith("hadar: told to end (SIGTERM); step 8 is saved\n"), said


def test_a_turn_that_does_not_end_in_time_is_told_of(run: Any) -> None:
    """As one that waits for a pool whose workers the same signal has ended."""
    script = """
import time, slurm_hadar.runtime.progress.endings as endings
endings._LATE_S = 0.2
for _ in (run := slurm_hadar.train(model, optimizer, total_steps=40)):
    step()
    if run.step == 3: os.kill(os.getpid(), signal.SIGTERM); time.sleep(1)
"""
    code, _, said = run(script)
    assert code == -signal.SIGTERM and "s ago, and the turn of the loop, or what" in said and "step 4 is saved" in said


def test_a_training_that_is_gone_keeps_no_signal(run: Any) -> None:
    """Nor does one that another has followed, or that a process is forked from."""
    script = """
import time
def left(name):
    for _ in (run := slurm_hadar.train(model, optimizer, total_steps=9, name=name)):
        step()
        if run.step == 2: return run
run = left("a"); other = left("b")
child = os.fork()
if not child: time.sleep(100); os._exit(0)
os.kill(child, signal.SIGTERM); print(os.waitpid(child, 0)[1], signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)
del other; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
    assert run(script)[1].split() == ["15", "True", "True"]


@pytest.mark.parametrize("interrupts", ["signal.default_int_handler", "signal.SIG_IGN"])
def test_a_worker_of_the_scripts_own_outlives_the_end_of_its_parent(interrupts: str, run: Any, tmp_path: Path) -> None:
    """``mp.spawn``: PyTorch interrupts the workers when their parent's main thread is gone, while others may still be
    there; or whoever began it behind a shell's ``&`` ignores that. What they have done is saved, and said once."""
    (tmp_path / "spawned.py").write_text(f"""
import os, signal, sys, time, torch, slurm_hadar
import torch.distributed as dist
def worker(rank):
    dist.init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in (run := slurm_hadar.train(model, optimizer, total_steps=4000)):
        optimizer.zero_grad(); model(torch.ones(3)).mean().backward(); optimizer.step(); time.sleep(0.01)
        if rank == 0 and run.step == 9: os.kill(os.getppid(), signal.SIGTERM)
""")
    script = f"""
sys.path.insert(0, {str(tmp_path)!r}); os.environ["PYTHONPATH"] += {":" + str(tmp_path)!r}
import spawned, threading, time, torch.multiprocessing
signal.signal(signal.SIGINT, {interrupts})
for _ in range(300): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
torch.multiprocessing.spawn(spawned.worker, nprocs=2)
"""
    code, _, said = run(script)
    assert code == -signal.SIGTERM
    told = tmp_path / "script-0.err"
    wait_for(lambda: "is saved" in told.read_text(), "the workers' save")
    said = told.read_text()
    assert said.count("told to end (SIGTERM); step") == 1 and "Traceback" not in said, said


def test_a_generator_in_also_goes_on(run: Any) -> None:
    script = """
import random, numpy
noise, dice, other = torch.Generator().manual_seed(1), random.Random(1), numpy.random.default_rng(1)
also = {"noise": noise, "dice": dice, "other": other}
for _ in (run := slurm_hadar.train(model, optimizer, total_steps=30, also=also, name=NAME)):
    step(); print(torch.rand(1, generator=noise).item(), dice.random(), other.random())
    if run.step in STOPS: os.kill(os.getpid(), signal.SIGTERM)
"""

    def drawn(name: str, stops: tuple[int, ...], restart: int) -> list[str]:
        _, out, said = run(script.replace("NAME", repr(name)).replace("STOPS", str(stops)), restart)
        assert "WARNING" not in said
        return out.splitlines()

    expected = drawn("undisturbed", (), 0)
    assert len(expected) == 30
    assert [
        line for restart, stops in enumerate([(11,), (19,), ()]) for line in drawn("moved", stops, restart)
    ] == expected


def test_what_is_done_between_two_passes_of_the_loop_is_saved_too(run: Any) -> None:
    """Where SIGTERM has come in the turn that left it: in good time, and told beforehand."""
    script = """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
run = slurm_hadar.train(model, optimizer, total_steps=20, scheduler=schedule, state={"epoch": 0})
while run.step < 20:
    for number in run:
        step()
        if number == 4 and {restart} == 0: os.kill(os.getpid(), signal.SIGTERM)
        if number % 5 == 4: break
    schedule.step(); run.state["epoch"] += 1
    print(run.step, run.state["epoch"], schedule.get_last_lr()[0], flush=True)
"""
    code, out, said = run(script.replace("{restart}", "0"), 0)
    assert code == -signal.SIGTERM and "step 5 is saved, and saved again" in said
    code, more, said = run(script.replace("{restart}", "1"), 1)
    assert code == 0 and "resumed from gen-0-step-5" in said
    assert (out + more).splitlines() == [f"{5 * n} {n} {0.1 * 0.5**n}" for n in range(1, 5)]


@pytest.mark.parametrize("base", ["torch.optim.Optimizer", "object"])
def test_an_optimizer_within_another_is_seen(run: Any, base: str) -> None:
    """As Accelerate's: the wrapper's step calls no hook but that of the one within, and the gradients stay until the
    next turn. The turn's save is made at once."""
    script = """
class Wrapper(BASE):
    def __init__(self, optimizer): self.optimizer = optimizer
    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    def state_dict(self): return self.optimizer.state_dict()
    def load_state_dict(self, state): self.optimizer.load_state_dict(state)
    def zero_grad(self, set_to_none=True): self.optimizer.zero_grad(set_to_none)
    def step(self, closure=None): self.optimizer.step(closure)
wrapped = Wrapper(optimizer)
for _ in (run := slurm_hadar.train(model, wrapped, total_steps=30)):
    step(wrapped)
    if run.step == 8: os.kill(os.getpid(), signal.SIGTERM)
"""
    code, _, said = run(script.replace("BASE", base))
    assert code == -signal.SIGTERM and "step 9 is saved" in said and "WARNING" not in said, said


def test_an_update_by_hand_does_not_wait_for_an_optimizer_for_ever(run: Any) -> None:
    """Nobody can see that the gradients are used; Slurm would kill what waits on."""
    script = """
import slurm_hadar.runtime.checkpoint.trigger as trigger, time
trigger._PATIENCE_S = 0.3
for _ in (run := slurm_hadar.train(model, optimizer, total_steps=400)):
    optimizer.zero_grad(); model(torch.randn(4, 3)).square().mean().backward(); time.sleep(0.02)
    for p in model.parameters(): p.data -= 0.1 * p.grad
    if run.step == 8: os.kill(os.getpid(), signal.SIGTERM)
"""
    code, _, said = run(script)
    assert code == -signal.SIGTERM and "gradients that no optimizer has used yet are left out" in said
    assert 9 < int(said.rpartition("step ")[2].split()[0]) < 200


def test_an_optimizer_around_another_that_steps_by_other_names(run: Any) -> None:
    script = """
class TwoSteps(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)
        self.param_groups = self.base.param_groups
    def second_step(self): self.base.step()
two = TwoSteps(model.parameters())
for _ in (run := slurm_hadar.train(model, two, total_steps=400)):
    two.zero_grad(); model(torch.randn(4, 3)).square().mean().backward(); two.second_step()
    if run.step == 8: os.kill(os.getpid(), signal.SIGTERM)
"""
    code, _, said = run(script)
    assert code == -signal.SIGTERM and "step 9 is saved" in said and "WARNING" not in said


def test_a_model_that_saves_less_than_it_asks_for_is_told_of_at_once(run: Any) -> None:
    script = """
class Adapter(nn.Module):
    def __init__(self): super().__init__(); self.base, self.a = nn.Linear(3, 1), nn.Parameter(torch.zeros(1, 3))
    def forward(self, x): return self.base(x) + x @ self.a.T
    def state_dict(self, *, destination, prefix="", keep_vars=False): destination[prefix + "a"] = self.a.detach()
model = nn.Sequential({})
slurm_hadar.train(model, optimizer, total_steps=3)
"""
    for layers, told in (("Adapter()", True), ("nn.Linear(3, 1)", False)):
        said = run(script.replace("{}", layers))[2]
        assert ("leaves out 2 parameters (0.base.bias, ...) that its load_state_dict() asks for" in said) == told


def test_two_trainings_side_by_side_know_each_others_optimizers(run: Any) -> None:
    script = """
other = torch.nn.Linear(3, 1)
second = torch.optim.Adam(other.parameters())
runs = [slurm_hadar.train(m, o, total_steps=15, name=str(i))
        for i, (m, o) in enumerate(((model, optimizer), (other, second)))]
for _ in zip(*runs):
    step(); second.zero_grad(); other(torch.randn(4, 3)).mean().backward(); second.step()
"""
    said = run(script)[2]
    assert "not saved" not in said
    assert said.count("WARNING: two trainings are under way at once") == 1
    ended = "\nprint([r.step for r in runs], [r._saver.saved_step for r in runs])"
    assert run(script + ended, 1)[1] == "[15, 15] [15, 15]\n"  # zip leaves the second one in its last turn


def test_trainings_one_after_the_other_are_not_under_way_at_once(run: Any) -> None:
    script = """
for name in "ab":
    for _ in (run := slurm_hadar.train(model, optimizer, total_steps=4, name=name)):
        step()
        if run.step == 2: break
    for _ in run: step()
"""
    assert "WARNING" not in run(script)[2]


def test_the_next_fold_does_not_take_the_last_ones_checkpoints(run: Any) -> None:
    """Without a name= it is refused; with one both train."""
    folds = """
for fold in range(2):
    print(len(list(slurm_hadar.train(model, optimizer, total_steps=5, name={name}))))
"""
    code, out, said = run(folds.format(name="None"))
    assert code == 1 and out.split() == ["5"] and "give each training of this process a name" in said
    assert run(folds.format(name="f'fold-{fold}'"))[1].split() == ["5", "5"]
    broken = "for n in range(2):\n    for _ in (run := slurm_hadar.train(model, optimizer, total_steps=9, name='c')):\n"
    code, _, said = run(broken + "        step()\n        if run.step == 3: break\n    run.save()")
    assert code == 0 and "WARNING: goes on from where another training of this process was" in said


def test_a_training_that_is_made_anew_in_each_epoch_is_told_once(run: Any) -> None:
    script = """
for epoch in range(1, 5):
    for _ in (run := slurm_hadar.train(model, optimizer, total_steps=5 * epoch)): step()
print(run.step)
"""
    code, out, said = run(script)
    assert (code, out, said.count("WARNING: goes on from where another training of this process")) == (0, "20\n", 1)


LATE = {
    "AveragedModel": "    if run.step == 15: average = torch.optim.swa_utils.AveragedModel(model)\n"
    "    if run.step > 15: average.update_parameters(model)\n    step()",
    "optimizer Adam": "    if run.step == 15: optimizer = torch.optim.Adam(model.parameters())\n    step(optimizer)",
    "optimizer SGD": "    sam.step()",
    "requires_grad, switched in Linear": "    step()\n    if run.step == 15: model.bias.requires_grad_(False)",
    "train() or eval() of a part, switched in Linear": "    step()\n    if run.step == 15: model.part.eval()",
    "the precision of parameters, switched in Linear": "    step()\n    if run.step == 15: model.part.double()",
    "random number generator dice": "    dice.random(); step()",
    "random number generator noise": "    torch.rand(1, generator=noise); step()",
    "parameter groups, added to SGD": "    step()\n"
    "    if run.step == 15: optimizer.add_param_group({'params': [more]})",
}
SAM = """
class SAM(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base.param_groups
    def step(self, closure=None):
        model(torch.randn(4, 3)).square().mean().backward(); self.base.step(); self.zero_grad()
sam = SAM(model.parameters())
model.part = nn.Linear(1, 1)
import random
dice, noise = random.Random(3), torch.Generator()
more = nn.Parameter(torch.zeros(1))
"""


@pytest.mark.parametrize("forgotten", LATE)
def test_what_begins_late_is_told_of_before_the_save_that_leaves_it_out(forgotten: str, run: Any) -> None:
    """An average of the last epochs, an optimizer made anew, one within another whose state it does not save."""
    given = "sam" if forgotten == "optimizer SGD" else "optimizer"
    loop = f"{SAM}for _ in (run := slurm_hadar.train(model, {given}, total_steps=400, save_every_steps=12)):\n"
    end = "\n    if run.step == 330: os.kill(os.getpid(), signal.SIGTERM)"
    _, _, said = run(loop + LATE[forgotten] + end)
    told = said.find("not saved, so a move or a restart sets it back: ")
    assert 0 <= told < said.find(forgotten) < said.find("told to end"), said


def test_a_sum_of_gradients_that_is_divided_into_new_tensors_is_used_all_the_same(run: Any) -> None:
    """Saves fall between gradients: after each fourth turn."""
    loop = """
for _ in (run := slurm_hadar.train(model, optimizer, total_steps=80, save_every_steps=6)):
    if run.step % 4 == 0: optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    if run.step % 4 == 3:
        for p in model.parameters(): p.grad = p.grad / 4
        optimizer.step()
    if run._saver.saved_step and run.step > 30: print(run._saver.saved_step)
"""
    found = {int(step) for step in run(loop)[1].split()}
    assert found and all(step % 4 == 0 for step in found)


def test_an_object_whose_state_is_empty_is_told_of(run: Any) -> None:
    """A metric keeps its sums out of its state_dict by default; a loss has none."""
    script = """
class Metric(nn.Module):
    def __init__(self): super().__init__(); self.total = torch.zeros(())
also = {"metric": Metric(), "loss": nn.MSELoss()}
for _ in slurm_hadar.train(model, optimizer, total_steps=3, also=also): step()
"""
    said = run(script)[2]
    assert "state_dict() of also['metric'] (Metric) is empty" in said and "also['loss']" not in said
