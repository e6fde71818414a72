"""When an unmodified script takes the turn, and when it hands it back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.sharing import member as members
from slurm_hadar.sharing.member import Member

ROOT = Path(__file__).resolve().parents[2]


class _Session:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.seen = ""

    def take(self) -> None:
        self.seen += "("

    def give_back(self, settle: object = None, spent_ns: int | None = None) -> None:
        assert settle is None and spent_ns is None  # without a GPU
        self.seen += ")"

    def heed(self) -> None:
        pass


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> _Session:
    session = _Session()
    monkeypatch.setattr(members, "_joined", lambda _: session)
    return session


def _forward(member: Member, gradients: bool = True, inside: int = 2) -> None:
    """A model's forward pass with those of its parts."""
    model = object()
    member.before_forward(model, gradients)
    for _ in range(inside):
        part = object()
        member.before_forward(part, gradients)
        member.after_forward(part)
    member.after_forward(model)


def _step(member: Member) -> None:
    member.before_step()
    member.after_step()


def test_a_training_iteration_is_a_turn_from_its_forward_pass_to_its_step(session: _Session) -> None:
    member = Member({})
    for _ in range(3):
        assert session.seen in {"", "()", "()()"}  # data is loaded here
        _forward(member)
        assert session.seen.endswith("(")
        _step(member)
    assert session.seen == "()()()"


def test_accumulated_gradients_are_one_turn_and_each_optimizer_ends_one(session: _Session) -> None:
    member = Member({})
    _forward(member)
    _forward(member)
    _step(member)
    assert session.seen == "()"

    _forward(member)
    _step(member)
    _step(member)  # a second optimizer, without a forward pass in between
    assert session.seen == "()()()"


def test_passes_without_gradients_are_turns_by_themselves_but_not_within_an_iteration(session: _Session) -> None:
    member = Member({})
    _forward(member, gradients=False)
    _forward(member, gradients=False)
    assert session.seen == "()()"

    _forward(member)
    _forward(member, gradients=False)  # a teacher
    assert session.seen == "()()("
    _step(member)
    assert session.seen == "()()()"


def test_a_turn_that_rests_is_handed_back_and_a_long_backward_pass_is_learned(
    session: _Session, monkeypatch: pytest.MonkeyPatch, poll: Any
) -> None:
    monkeypatch.setattr(members, "QUIET_S", 0.1)
    member = Member({})
    _forward(member)
    poll(lambda: session.seen == "()", 5)  # it saves, or evaluates by other means
    time.sleep(0.2)
    _step(member)  # it was a backward pass
    assert session.seen == "()()"

    _forward(member)
    time.sleep(0.3)
    assert session.seen == "()()("
    _step(member)
    assert session.seen == "()()()"


def test_passes_that_no_step_follows_hand_the_turn_back_between_them(
    session: _Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "LONGEST_S", 0.05)
    member = Member({})
    for _ in range(3):
        _forward(member)
        time.sleep(0.06)

    assert session.seen == "()()("


def test_what_a_script_marks_by_itself_is_one_turn_whatever_hooks_see(
    session: _Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "QUIET_S", 0.02)
    member = Member({})
    _forward(member)
    with member.iteration():
        _forward(member)
        with member.iteration():
            _step(member)
        _forward(member, gradients=False)
        time.sleep(0.1)
        assert session.seen == "()("
    assert session.seen == "()()"


def test_threads_that_overlap_without_an_end_hand_the_turn_back(
    session: _Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is within at every moment."""
    monkeypatch.setattr(members, "LONGEST_S", 0.05)
    member, over = Member({}), time.monotonic() + 20.0

    def loop(first_s: float) -> None:
        time.sleep(first_s)
        while session.seen.count(")") < 3 and time.monotonic() < over:
            with member.iteration(), member.iteration():
                time.sleep(0.02)

    threads = [threading.Thread(target=loop, args=(delay,)) for delay in (0.0, 0.01, 0.015)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert session.seen.count(")") >= 3 and "((" not in session.seen


def test_a_thread_that_is_waited_for_is_let_in(session: _Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "LONGEST_S", 0.0)
    monkeypatch.setattr(members, "_LEAVE_S", 0.05)
    member, done = Member({}), threading.Event()

    def work() -> None:
        with member.iteration():
            done.set()

    with member.iteration():
        thread = threading.Thread(target=work)
        thread.start()
        assert done.wait(20.0)
        thread.join()
    assert session.seen == "()"


def test_a_child_that_is_forked_within_a_turn_leaves_it_to_its_parent(session: _Session) -> None:
    """A lock that another thread held at that moment is nobody's in the child."""
    member = Member({})
    member.join()
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with member._lock:  # noqa: SLF001 as the watch does
            held.set()
            free.wait(20.0)

    thread = threading.Thread(target=hold)
    with member.iteration():
        thread.start()
        held.wait(20.0)
        child = os.fork()
        if child:
            free.set()
            thread.join()
    if not child:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert session.seen == "()"


SCRIPT = """
import sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
kind = sys.argv[1]
model, other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
optimizer, second = torch.optim.SGD(model.parameters(), lr=.01), torch.optim.SGD(other.parameters(), lr=.01)
batch = torch.randn(4, 8)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        with torch.no_grad(): return model(batch)
if kind == "accumulate":
    for i in range(40):
        model(batch).sum().backward()
        if i % 4 == 3: optimizer.step()
elif kind == "gan":
    for i in range(20):
        loss = model(other(batch)).sum(); loss.backward(); optimizer.step(); second.step()
elif kind == "evaluate":
    for i in range(10):
        model(batch).sum().backward(); optimizer.step()
        model.eval(); model(batch); model.train()
    time.sleep(3)
elif kind == "workers":
    for data in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
        other(data).sum().backward(); second.step()
elif kind == "raises":
    for i in range(10):
        try: model(torch.randn(4, 7))
        except RuntimeError: pass
        with torch.no_grad(): model(batch)
elif kind == "several":
    import os; os.environ["WORLD_SIZE"] = "2"
    for i in range(5):
        model(batch).sum().backward(); optimizer.step()
"""


@pytest.mark.parametrize(("world", "takes"), [("", True), ("all", True), ("1", True), ("2", False)])
def test_who_is_one_of_several_that_train_together(monkeypatch: pytest.MonkeyPatch, world: str, takes: bool) -> None:
    """A variable that is no number is none of a launcher's, and no reason to end a training."""
    monkeypatch.setenv("HADAR_SHARE", "/socket")
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setattr(members, "_members", [])

    assert (members.member() is not None) is takes


@pytest.mark.torch
@pytest.mark.thorough
def test_scripts_of_all_kinds_share_and_none_waits_for_ever(short_tmp: Path) -> None:
    pytest.importorskip("torch")
    script = short_tmp / "job.py"
    script.write_text(SCRIPT)
    kinds = {"accumulate": 10, "gan": 40, "evaluate": 11, "workers": 10, "raises": 1, "several": 0}
    env = {name: value for name, value in os.environ.items() if not name.startswith("HADAR_")}
    jobs = [f"{sys.executable} {script} {kind}" for kind in kinds]
    done = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", "share", "run", *jobs],
        env=env | {"PYTHONPATH": str(ROOT), "TMPDIR": str(short_tmp)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for job, (kind, turns) in enumerate(kinds.items(), 1):
        (line,) = (line for line in done.stderr.splitlines() if f"job {job} (" in line)
        assert (f": {turns} turns, " if turns else ": it took no turns") in line, (kind, line)
    assert "one of several that train together: it takes no turns" in done.stderr
