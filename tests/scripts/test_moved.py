"""Training scripts in many people's habits, each started as it is and moved by the real controller at random moments:
the weights are those of the undisturbed run, bit by bit, or a warning came before anything was lost.

``HADAR_TEST_MOVES`` says how often each is moved, ``HADAR_TEST_SEED`` draws other moments: ``make scripts`` moves each
three times. Moved once, it is one script of each sort.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.comment import read
from tests.controller.conftest import Live
from tests.controller.live.jobs.test_training import environment

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.thorough]
torch = pytest.importorskip("torch")

HERE = Path(__file__).resolve().parent
MOVES = int(os.environ.get("HADAR_TEST_MOVES", "1"))
SEED = int(os.environ.get("HADAR_TEST_SEED", "1"))
DEADLINE_S = 300.0 + 300.0 * MOVES
AT_ONCE = 4  # of more the rounds take so long that trainings are over before their last move
NODES = ("v100-1", "p100-1", "k80-1")
ALL = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("test_"))
#: What a controller does with each sort of script. That all others are resumed exactly is tested without a cluster
#: (tests/runtime/checkpoint/test_habits.py, tests/runtime/test_callbacks.py); ``make scripts`` moves every one.
SCRIPTS = ["forgets_ema", "own_checkpoint", "plain_loop", "untouched"] if MOVES == 1 else ALL
EXACT = [name for name in SCRIPTS if name not in ("forgets_ema", "untouched")]
COMMENTS = {"own_checkpoint": "hadar:ckpt=yes"}
GPUS = {"ddp": 2}
_TORCHRUN = "--nproc-per-node={gpus} --master-addr=$HADAR_MASTER_ADDR --master-port=$HADAR_MASTER_PORT --"


@dataclass
class Script:
    """One script on its way. ``moves`` are the steps at which it was told to move; ``goal`` is where it is to be."""

    name: str
    job: str
    out: Path
    dice: random.Random
    goal: str = NODES[0]
    due: float = 0.0
    moves: list[float] = field(default_factory=list)
    state: str = ""
    unmovable: set[str] = field(default_factory=set)
    undisturbed: Any = None
    reference: str = ""

    @property
    def gpus(self) -> int:
        return GPUS.get(self.name, 1)

    @property
    def over(self) -> bool:
        return self.state not in ("", "PENDING", "RUNNING", "COMPLETING", "REQUEUED")

    def wants_to_move(self, restart: int, steps: float) -> bool:
        """Whether it has come to the moment of its next move in this run."""
        return len(self.moves) == restart < MOVES and steps >= self.due

    def draw(self, steps: float) -> None:
        """The moment of the next move: so many steps after this one."""
        self.due = steps + self.dice.uniform(5, 40)

    def move(self, steps: float) -> None:
        self.moves.append(steps)
        self.goal = self.dice.choice([node for node in NODES if node != self.goal])


def _command(name: str, out: Path) -> str:
    python = f'"{sys.executable}"'
    if name in GPUS:
        python = f"exec torchrun {_TORCHRUN.format(gpus=GPUS[name])}"
        return f"hadar-srun -- bash -c '{python} {HERE / name}.py --out={out}'\n"
    return f"hadar-srun -- {python} {HERE / name}.py --out={out}\n"


def _submit(live: Live, name: str) -> Script:
    work = live.work / name
    work.mkdir()
    out = work / "moved.pt"
    options = (f"--gres=gpu:{GPUS.get(name, 1)}", f"--job-name={name}", f"--chdir={work}", "--time=60")
    job = live.submit(*options, comment=COMMENTS.get(name, "hadar:"), script=_command(name, out), env=environment())
    return Script(name, job, out, random.Random(f"{SEED}/{name}"))


def _undisturbed(script: Script) -> None:
    """The same script without Slurm, in a directory of its own."""
    folder = script.out.with_name("undisturbed")
    folder.mkdir()
    out, path = folder / "weights.pt", HERE / f"{script.name}.py"
    start = [sys.executable]
    if script.name in GPUS:
        start = [
            str(Path(sys.executable).with_name("torchrun")),
            f"--nproc-per-node={script.gpus}",
            "--standalone",
            "--",
        ]
    done = subprocess.run(
        [*start, str(path), f"--out={out}"],
        env=environment(NAP_S="0"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    script.reference = done.stdout + done.stderr
    script.undisturbed = torch.load(out) if done.returncode == 0 else None


def _round(live: Live, controller: Any, scripts: list[Script]) -> None:
    """Look at all jobs, tell those that have come to their moment to move, and let the controller do it."""
    jobs = {job.job_id: job for job in live.backend.read_jobs()}
    live.book.expect({job.job_id: read(job.comment)[0].key for job in jobs.values()})
    for script in scripts:
        if script.over:
            continue
        job, news = jobs.get(script.job), live.book.get(script.job)
        script.state = job.state_text if job is not None else live.state_of(script.job)
        if job is None or news is None or news.report.restart != job.restarts or not news.report.steps_per_s:
            continue
        steps = news.report.steps or 0.0
        if script.due <= (script.moves[-1] if script.moves else 0.0):
            script.draw(steps)
        if script.wants_to_move(job.restarts, steps):
            script.move(steps)
    live.place(**{f"j{s.job}": {s.goal: s.gpus} for s in scripts if not s.over})
    result = controller.run_round()
    for script in scripts:
        seen = result.seen.snapshot.job.get(script.job)
        if seen is not None and seen.unmovable and seen.running:
            script.unmovable.add(seen.unmovable)
    # what Slurm has started by itself since it was read cannot be placed any more, and is no fault
    failed = [w for w in result.outcome.log if w.outcome == "refused" and result.outcome.shown.waits(w.job_id)]
    assert not failed, failed


@pytest.fixture(scope="module")
def moved(
    make_module_cluster: Callable[..., PrivateCluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Script]]:
    """All scripts, moved and come to their ends, with what became of them undisturbed."""
    room = sum(GPUS.get(name, 1) for name in SCRIPTS)
    cluster = make_module_cluster(",".join(f"{node.partition('-')[0]}:1x{room}" for node in NODES))
    live = Live(cluster, tmp_path_factory.mktemp("scripts"))
    try:
        # time to move it, and none for what comes after the last move
        live.pace(**{node.partition("-")[0]: 10.0 if MOVES > 1 or node == NODES[0] else 1e5 for node in NODES})
        controller = live.controller("jobs.end_timeout_s=120", "jobs.ack_timeout_s=60", channel=True)
        end, scripts, references = time.monotonic() + DEADLINE_S, [], []
        with ThreadPoolExecutor(3) as pool:
            for first in range(0, len(SCRIPTS), AT_ONCE):
                group = _started(live, SCRIPTS[first : first + AT_ONCE], end)
                references += [pool.submit(_undisturbed, script) for script in group]
                scripts += group
                while not all(script.over for script in group) and time.monotonic() < end:
                    _round(live, controller, group)
                    time.sleep(0.2)
            for reference in references:
                reference.result()
        yield {script.name: script for script in scripts}
    finally:
        live.close()


def _started(live: Live, names: list[str], end: float) -> list[Script]:
    """Scripts that have all been started on the first node, whatever Slurm would have chosen: no other takes jobs
    until then, and no round comes that would move them."""
    others = f"NodeName={','.join(NODES[1:])}"
    live.cluster.run(["scontrol", "update", others, "State=DRAIN", "Reason=the scripts start elsewhere"])
    group = [_submit(live, name) for name in names]
    while live.cluster.run(["squeue", "-h", "-t", "PENDING", "-o", "%i"]).stdout and time.monotonic() < end:
        time.sleep(0.2)
    live.cluster.run(["scontrol", "update", others, "State=RESUME"])
    return group


def _output(script: Script) -> str:
    return script.out.with_name(f"{script.job}.out").read_text()


def _alike(one: Any, other: Any) -> bool:
    """The same bits in all tensors, and all else equal."""
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", EXACT)
def test_it_ends_with_the_weights_of_the_undisturbed_run(moved: dict[str, Script], name: str) -> None:
    script = moved[name]
    assert script.undisturbed is not None, script.reference
    assert script.state == "COMPLETED" and len(script.moves) == MOVES, (script, _output(script))
    assert _alike(torch.load(script.out), script.undisturbed), _output(script)


def test_what_was_forgotten_is_told_of_before_it_is_lost(moved: dict[str, Script]) -> None:
    script = moved["forgets_ema"]
    text = _output(script)
    assert script.state == "COMPLETED" and len(script.moves) == MOVES, (script, text)
    assert "AveragedModel" in text and text.index("AveragedModel") < text.index("hadar: resumed from")
    assert _alike(torch.load(script.out), script.undisturbed)


def test_a_script_that_cannot_save_is_not_moved(moved: dict[str, Script]) -> None:
    """Though the policy wanted to; and it is told why."""
    script = moved["untouched"]
    assert script.state == "COMPLETED" and "resum" not in _output(script)
    assert len(script.moves) == 1  # wanted, and not done: the run is still the first
    assert any("has no checkpoint support" in why for why in script.unmovable)
    assert _alike(torch.load(script.out), script.undisturbed)
