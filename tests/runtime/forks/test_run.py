"""Copies of a forked job as real processes that meet in a directory, with no controller about."""

import itertools
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from slurm_hadar import forks  # noqa: E402
from slurm_hadar.errors import HadarError  # noqa: E402
from slurm_hadar.runtime.batches.epochs import epochs_of  # noqa: E402
from slurm_hadar.runtime.forks.meeting import Commit, MeetingDirectory, write_plan  # noqa: E402
from slurm_hadar.runtime.forks.run import ForkedRun  # noqa: E402
from tests.runtime.forkserver import Script  # noqa: E402

SCRIPT = """
import json, os, sys, time, torch, slurm_hadar
torch.set_num_threads(1)
many = "RANK" in os.environ
if many: torch.distributed.init_process_group("gloo")
torch.manual_seed(int(os.environ.get("SEED", 0)))
nn = torch.nn
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
model = nn.parallel.DistributedDataParallel(net) if many else net
numbers = torch.arange(96)
data = torch.utils.data.TensorDataset((numbers / 96).unsqueeze(1).repeat(1, 4), numbers)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
total, pause = int(os.environ["TOTAL"]), float(os.environ["PAUSE"])
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total)
sampler = torch.utils.data.DistributedSampler(data, drop_last=True) if many else None
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=not many, sampler=sampler, drop_last=True)
run = slurm_hadar.train(model, optimizer, total_steps=total, loader=loader, scheduler=schedule, state={"seen": 0},
                        also={"best": 0.0, "seen": []}, global_batch=8 if many else None)
print(json.dumps({"begun": run.step}), flush=True)
log = open(os.environ["LOG"], "a", buffering=1)
for x, y in run:
    loss = (model(x).squeeze() - y / 96).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
    run.state["seen"] += 1
    run.also["best"] = run.step / total; run.also["seen"].append(run.step)
    log.write(json.dumps({"after": run.consolidation, "step": run.step, "lr": schedule.get_last_lr()[0],
                          "samples": y.tolist()}) + "\\n")
    time.sleep(pause)
print(json.dumps({"end": run.step, "lr": schedule.get_last_lr()[0], "best": run.also["best"],
                  "state": [run.state["seen"], len(run.also["seen"])],
                  "finite": all(bool(t.isfinite().all()) for t in net.state_dict().values())}), flush=True)
"""


class Copies:
    """Starts, kills and reads copies of one job."""

    def __init__(self, directory: Path, env: dict[str, str], start_script: Callable[..., Script]) -> None:
        self.directory, self.env, self.start_script = directory, env, start_script
        self.meeting = directory / "fork"

    def start(
        self, copy: int, pause: float = 0.004, restart: int = 0, total: int = 600, period: str = "0.5s", **more: Any
    ) -> Any:
        env = {
            **self.env,
            "HADAR_FORK_DIR": str(self.meeting),
            "HADAR_FORK_COPY": str(copy),
            "HADAR_PERIOD": period,
            "SLURM_RESTART_COUNT": str(restart),
            "LOG": str(self.directory / f"log-{copy}"),
            "TOTAL": str(total),
            "PAUSE": str(pause),
            **more,
        }
        return self.start_script(SCRIPT, env)

    @property
    def newest(self) -> Commit | None:
        return MeetingDirectory(self.meeting, 99).newest()

    def steps(self) -> int:
        return self.newest.step if self.newest else 0

    def lines(self, copy: int) -> list[dict[str, Any]]:
        path = self.directory / f"log-{copy}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def copies(tmp_path: Path, job_env: dict[str, str], start_script: Callable[..., Script]) -> Copies:
    return Copies(tmp_path, job_env, start_script)


def results(processes: list[Script]) -> list[dict[str, Any]]:
    """What each said at its end; None for those that left it to another."""
    ends = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        said = [json.loads(line) for line in out.splitlines()]
        ends += [line for line in said if "end" in line]
    return ends


def test_copies_of_unlike_speed_do_each_step_once(copies: Copies) -> None:
    """Every sample is seen as often as by one worker; the schedule follows the whole job; one copy ends the script."""
    total = 12 * 40  # 40 epochs
    ends = results([copies.start(c, pause, total=total) for c, pause in enumerate((0.002, 0.004, 0.012))])

    (end,) = ends
    assert (end["end"], end["lr"], end["finite"]) == (total, pytest.approx(0.0, abs=1e-6), True)
    # plain data of the user's, given as state or as also, is that of the copy that made most steps
    assert end["best"] > 0.5 and end["state"][0] == end["state"][1] > 0
    logs = [copies.lines(c) for c in range(3)]
    assert sum(map(len, logs)) == total and all(logs)
    assert Counter(s for log in logs for line in log for s in line["samples"]) == dict.fromkeys(range(96), 40)
    assert copies.newest.complete and copies.newest.step == total
    for log in logs:
        # each period begins where the job is, which may be a little before where a copy took it to be
        assert all(a["lr"] >= b["lr"] or b["after"] > a["after"] for a, b in itertools.pairwise(log))
        assert all(abs(line["lr"] - 0.1 * (1 - line["step"] / total)) < 0.01 for line in log)


def test_steps_are_those_of_a_job_that_is_not_forked(copies: Copies) -> None:
    """Copies train the same batches, in the same epochs, as one copy alone does with the same seed."""
    total = 12 * 10
    results([copies.start(c, total=total, period="25") for c in range(3)])
    together = Counter(tuple(sorted(line["samples"])) for c in range(3) for line in copies.lines(c))
    alone = Copies(copies.directory / "alone", copies.env, copies.start_script)
    alone.directory.mkdir()
    results([alone.start(0, 0.0, total=total)])
    assert together == Counter(tuple(sorted(line["samples"])) for line in alone.lines(0))


@pytest.mark.parametrize(
    ("head", "end"),
    [("if run.epoch != epoch: break", ""), ("", "if run.own_steps % 12 == 11: break")],
    ids=["before the step", "behind it"],
)
def test_a_loop_that_is_left_and_entered_again_goes_on(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, head: str, end: str
) -> None:
    """As by a loop over epochs around it: each step is made once, and the copy is not taken for dead meanwhile."""
    total = 12 * 10
    first, last = SCRIPT.index("for x, y in run:"), SCRIPT.index('print(json.dumps({"end"')
    body = "".join(f"    {line}\n" for line in SCRIPT[first:last].splitlines())
    loop = body.replace("in run:\n", f"in run:\n        {head or 'pass'}\n") + f"        {end or 'pass'}\n"
    around = f"for epoch in range(100):\n{loop}    if run.step >= total: break\n"
    monkeypatch.setitem(globals(), "SCRIPT", SCRIPT[:first] + around + SCRIPT[last:])

    ends = results([copies.start(c, total=total, period="25") for c in range(2)])

    assert [e["end"] for e in ends] == [total] and copies.newest.step == total
    seen = Counter(tuple(sorted(line["samples"])) for c in range(2) for line in copies.lines(c))
    assert sum(seen.values()) == total and set(seen.values()) == {1}


def test_a_copy_goes_through_the_epochs_of_which_it_makes_steps(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is made once, and a pass over an epoch's batches ends with it."""
    total = 12 * 10
    first, last = SCRIPT.index("for x, y in run:"), SCRIPT.index('print(json.dumps({"end"')
    body = "".join(f"    {line}\n" for line in SCRIPT[first:last].splitlines())
    body = body.replace(
        "in run:\n", "in loader:\n        assert run.epoch == epoch and loader.start < len(loader) == 12\n"
    )
    monkeypatch.setitem(
        globals(), "SCRIPT", f"{SCRIPT[:first]}for epoch, loader in run.epochs():\n{body}{SCRIPT[last:]}"
    )

    ends = results([copies.start(c, total=total, period="25") for c in range(2)])

    assert [e["end"] for e in ends] == [total]
    seen = Counter(tuple(sorted(line["samples"])) for c in range(2) for line in copies.lines(c))
    assert sum(seen.values()) == total and set(seen.values()) == {1}


def test_an_epoch_of_which_a_copy_takes_no_batch_is_no_endless_loop() -> None:
    """It has the steps to make, and would be given the same epoch again and again."""
    feed: Any = SimpleNamespace(epoch=0, index=0, epoch_batches=3, source=[])

    def run() -> Iterator[int]:
        for step in range(9):
            feed.epoch, feed.index = step // 3, step % 3 + 1
            yield step

    made = []
    with pytest.raises(HadarError, match="epoch 2 was left without a step, and a forked job makes all of its steps"):
        for epoch, loader in epochs_of(run(), feed):
            for step in loader if epoch < 2 else ():
                made.append(step)
                if step == 1:
                    break  # the rest of that epoch comes next
    assert made == [0, 1, 2, 3, 4, 5]


def test_no_copy_takes_the_job_for_done_by_what_it_reckons_of_the_others() -> None:
    """It would break out of its loops, and go on to the end of the script with weights of its own."""
    run = object.__new__(ForkedRun)
    run.total_steps = 10
    for reckoned, complete, told in ((4, False, 4), (12, False, 9), (12, True, 10)):
        run._clock, run._commit = SimpleNamespace(step=reckoned), SimpleNamespace(complete=complete)  # type: ignore[assignment]
        assert run.step == told


def test_a_killed_copy_loses_only_its_own_period(copies: Copies, waiting: Callable[..., object]) -> None:
    """The others end with all steps done; what the killed one had not offered is done anew."""
    processes = [copies.start(c, total=800) for c in range(3)]
    waiting(lambda: copies.newest and copies.newest.number >= 3 and len(copies.newest.shares) == 3)
    processes[1].kill()
    ends = results([processes[0], processes[2]])
    assert [e["end"] for e in ends] == [800] and ends[0]["finite"]
    assert copies.newest.step == 800


def test_a_late_copy_begins_with_the_latest_consolidation(copies: Copies, waiting: Callable[..., object]) -> None:
    early = copies.start(0, total=1500)
    waiting(lambda: copies.steps() > 100)
    late = copies.start(1, total=1500)
    ends = results([early, late])
    assert len(ends) == 1 and ends[0]["end"] == 1500
    first = copies.lines(1)[0]
    assert first["after"] >= 1 and first["step"] > 100


def test_random_kills_and_restarts(copies: Copies, waiting: Callable[..., object]) -> None:
    """Whatever is killed and started again, the job ends with exactly its steps, each counted once."""
    chance = random.Random(7)
    restarts: Counter[int] = Counter()
    running = {c: copies.start(c, 0.003, total=900, period="0.3s") for c in range(3)}
    for _ in range(8):
        goal = copies.steps() + chance.randint(20, 90)
        waiting(lambda goal=goal: copies.steps() >= min(goal, 900))
        if copies.newest.complete:
            break
        victim = chance.randrange(3)
        running[victim].kill()
        restarts[victim] += 1
        running[victim] = copies.start(victim, 0.003, restarts[victim], total=900, period="0.3s")
    ends = results(list(running.values()))
    assert [e["end"] for e in ends] == [900] and ends[0]["finite"]
    assert copies.newest.step == 900 and not copies.newest.to_do


def test_a_job_whose_copies_all_died_goes_on(copies: Copies, waiting: Callable[..., object]) -> None:
    first = [copies.start(c, total=500) for c in range(2)]
    waiting(lambda: copies.steps() > 100)
    for process in first:
        process.kill()
        process.wait()
    done = copies.steps()
    ends = results([copies.start(1, 0.0, restart=1, total=500)])
    assert ends[0]["end"] == 500 and copies.newest.step == 500
    assert copies.lines(1)[-1]["step"] >= done


def test_a_copy_that_hangs_is_not_waited_for(copies: Copies, waiting: Callable[..., object]) -> None:
    """SIGSTOP: it gives no sign of life. When it wakes up, its old work counts no more, and it ends well."""
    processes = [copies.start(c, total=1200) for c in range(2)]
    waiting(lambda: copies.newest and copies.newest.number >= 2 and len(copies.newest.shares) == 2)
    os.kill(processes[0].pid, signal.SIGSTOP)
    done = copies.steps()
    waiting(lambda: copies.steps() > done + 50 or copies.newest.complete)
    os.kill(processes[0].pid, signal.SIGCONT)
    ends = results(processes)
    assert [e["end"] for e in ends] == [1200] and copies.newest.step == 1200


def test_the_trackers_plan_decides_the_shares(copies: Copies, waiting: Callable[..., object]) -> None:
    """Copies that the plan names get what it says; a later plan replaces it, an older one does not."""
    processes = [copies.start(c, 0.002, total=3000, period="200") for c in range(2)]
    waiting(lambda: copies.newest and len(copies.newest.shares) == 2)
    write_plan(copies.meeting, forks.PeriodPlan(2, 0, {0: 30, 1: 10}))
    write_plan(copies.meeting, forks.PeriodPlan(1, 0, {0: 1, 1: 99}))

    def shares() -> dict[int, int]:
        return {c: forks.count(spans) for c, spans in copies.newest.shares.items()}

    waiting(lambda: shares() == {0: 30, 1: 10})
    write_plan(copies.meeting, forks.PeriodPlan(3, 0, {0: 20, 1: 60}))
    waiting(lambda: shares() == {0: 20, 1: 60})
    for process in processes:
        process.kill()


def test_a_copy_that_slurm_ends_offers_what_it_has_made(copies: Copies, waiting: Callable[..., object]) -> None:
    """In the midst of a long period: its steps count when it is there again."""
    process = copies.start(0, 0.01, total=400, period="300s")
    waiting(lambda: len(copies.lines(0)) >= 50)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    made = len(copies.lines(0))

    assert process.returncode == -signal.SIGTERM
    assert f"told to end (SIGTERM); the {made} steps of copy 0 in this period are saved" in err
    assert [e["end"] for e in results([copies.start(0, 0.0, restart=1, total=400, period="300s")])] == [400]
    assert len(copies.lines(0)) == 400, "a step was made twice"


def test_a_copy_that_waits_for_others_ends_at_once(copies: Copies, waiting: Callable[..., object]) -> None:
    """It has offered; who computes on is not held up."""
    slow, fast = copies.start(1, 0.01, total=300, period="60"), copies.start(0, 0.0, total=300, period="60")
    waiting(lambda: copies.newest and len(copies.newest.shares) == 2)
    os.kill(slow.pid, signal.SIGSTOP)
    waiting(lambda: len(copies.lines(0)) and MeetingDirectory(copies.meeting, 99).offers(copies.newest).keys() == {0})
    os.kill(fast.pid, signal.SIGTERM)
    fast.communicate(timeout=25)

    assert fast.returncode == -signal.SIGTERM
    os.kill(slow.pid, signal.SIGCONT)
    assert [e["end"] for e in results([slow])] == [300]


def test_a_damaged_consolidation_is_passed_over(copies: Copies, waiting: Callable[..., object]) -> None:
    """A restart finds the newest one truncated: the one before it counts, and its steps are done anew."""
    process = copies.start(0, total=400, period="50")
    waiting(lambda: copies.newest and copies.newest.number >= 3)
    process.kill()
    process.wait()
    newest = copies.newest
    path = copies.meeting / newest.weights
    path.write_bytes(path.read_bytes()[:-10])
    again = copies.start(0, restart=1, total=400, period="50")
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert f"consolidation {newest.number} is passed over" in err
    assert copies.newest.step == 400


def test_another_training_is_refused_in_one_line(copies: Copies) -> None:
    """The directory belongs to a training of other steps, or of another model."""
    results([copies.start(0, 0.0, total=20)])
    other = copies.start(1, 0.0, total=30)
    _, err = other.communicate(timeout=300)
    assert other.returncode != 0 and "belongs to a training of 20 steps, and this one has 30" in err.splitlines()[-1]


def test_a_gang_is_one_copy(copies: Copies) -> None:
    """Two workers of one copy and a lone copy share the steps; both workers load the same weights."""
    with_rank = {"WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
    with_rank["MASTER_PORT"] = str(random.Random(copies.directory.name).randint(20000, 29999))
    gang = [copies.start(0, total=240, RANK=str(r), **with_rank) for r in range(2)]
    lone = copies.start(1, total=240)
    ends = results([*gang, lone])
    assert {e["end"] for e in ends} == {240} and len(ends) in (1, 2)
    assert copies.newest.step == 240 and len(copies.lines(1)) > 20
