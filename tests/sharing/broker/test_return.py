"""A broker after another one: who comes back, in which order, and whose memory it counts meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.procstat import stat_of
from slurm_hadar.sharing.broker import client, ledger
from slurm_hadar.sharing.broker.arbiter.arbiter import Arbiter
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.broker.messages import Message, Notice
from slurm_hadar.sharing.broker.queries import status_of
from slurm_hadar.sharing.broker.settings import Rules
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.turns import Policy

MS = 1_000_000
HOLD = 5000 * MS
LARGE = Demand(600, 300)


def _after(policy: Policy, *formers: tuple[str, Demand, bool], memory: int = 1000) -> Arbiter:
    arbiter = Arbiter(Rules(policy, memory))
    for name, demand, admitted in formers:
        arbiter.expect(name, demand, admitted, HOLD)
    return arbiter


@pytest.mark.parametrize("policy", Policy)
def test_a_waiter_that_is_back_first_waits_for_those_whose_memory_is_there(policy: Policy) -> None:
    arbiter = _after(policy, ("a", LARGE, True), ("b", LARGE, False))
    assert arbiter.join("b2", LARGE, 0, "", 0, back="b") == []
    assert arbiter.join("new", Demand(0, 1), 0, "", 1) == []  # nor does anybody new who would fit
    assert arbiter.deadline_ns() == HOLD
    told = arbiter.join("a2", LARGE, 0, "", 2, back="a")

    assert told[0] == Notice("a2", Message.ADMITTED) and not arbiter.absent_bytes and arbiter.is_safe()
    assert Notice("b2", Message.ADMITTED) not in told
    assert Notice("b2", Message.ADMITTED) in arbiter.leave("a2", 3)


def test_who_does_not_come_back_keeps_what_it_has_until_its_process_ends() -> None:
    """And no more than that: others are let in beside it when the time is over."""
    arbiter = _after(Policy.FAIR, ("a", LARGE, True))
    arbiter.join("large", LARGE, 0, "", 0)
    arbiter.join("small", Demand(50, 50), 0, "", 1)
    assert arbiter.look(HOLD - 1) == []
    arbiter.leave("large", HOLD - 1)
    assert arbiter.look(HOLD) == [Notice("small", Message.ADMITTED)] and arbiter.deadline_ns() is None
    assert arbiter.join("large", LARGE, 0, "", HOLD + 1) == []
    assert arbiter.leave("a", HOLD + 2) == [Notice("large", Message.ADMITTED)]


def test_waiters_come_back_to_their_places() -> None:
    arbiter = _after(Policy.FAIR, ("a", LARGE, True), ("b", LARGE, False), ("c", LARGE, False))
    for name in ("new", "c2", "b2", "a2"):
        arbiter.join(name, LARGE, 0, "", 0, back=name[0] if name.endswith("2") else None)
    assert arbiter.in_order() == ["a2", "b2", "c2", "new"]
    for name in arbiter.in_order():
        assert arbiter.is_in(name)
        arbiter.leave(name, 1)


def test_memory_is_kept_from_turn_to_turn_only_beside_what_the_absent_have() -> None:
    arbiter = _after(Policy.FAIR, ("a", Demand(10, 50), True), ("b", Demand(10, 50), True), memory=121)
    assert arbiter.join("b2", Demand(10, 50), 0, "", 0, can_keep=True, back="b") == [
        Notice("b2", Message.ADMITTED), Notice("b2", Message.KEEP),
    ]  # fmt: skip
    assert arbiter.join("c", Demand(1, 1), 0, "", HOLD, can_keep=True) == [Notice("b2", Message.FREE)]


sizes = st.tuples(st.integers(0, 60), st.integers(0, 40)).map(lambda two: Demand(*two))


@pytest.mark.parametrize("policy", Policy)
@given(
    before=st.lists(sizes, max_size=6),
    order=st.lists(
        st.tuples(st.sampled_from(["back", "back", "new", "gone", "wait", "turn"]), st.integers(0, 9), sizes)
    ),
)
def test_in_whatever_order_they_come_back_memory_is_promised_once_only(
    policy: Policy, before: list[Demand], order: list[tuple[str, int, Demand]]
) -> None:
    first = Arbiter(Rules(policy, 100))
    for number, demand in enumerate(before):
        first.join(f"s{number}", demand, 0, "", 0)
    left = {name: (before[int(name[1:])], first.is_in(name)) for name in first.in_order()}
    arbiter = _after(policy, *((name, *what) for name, what in left.items()), memory=100)
    now, joined = 0, set()
    for what, which, demand in order:
        now += HOLD if what == "wait" else 1
        name = sorted(left)[which % len(left)] if left else None
        if what == "new":
            joined.add(f"n{now}")
            arbiter.join(f"n{now}", demand, 0, "", now, can_keep=bool(which % 2))
        elif what == "wait":
            arbiter.look(now)
        elif what == "back" and name:
            was, admitted = left.pop(name)
            joined.add(name + "+")
            told = arbiter.join(name + "+", was, 0, "", now, back=name, can_keep=bool(which % 2))
            assert not admitted or told[0] == Notice(name + "+", Message.ADMITTED)
        elif what == "gone" and name:
            del left[name]
            arbiter.leave(name, now)
        elif what == "leave" and joined:
            other = sorted(joined)[which % len(joined)]
            joined.discard(other)
            arbiter.leave(other, now)
        absent = [was for was, admitted in left.values() if admitted]
        persistent = sum(one.persistent_bytes for one in absent)
        ephemeral = [one.ephemeral_bytes for one in absent]
        lanes = sum(lane.size_bytes for lane in arbiter.memory.lanes)
        more = sum(ephemeral) if policy is Policy.PACK else max(0, max(ephemeral, default=0) - lanes)
        assert arbiter.is_safe() and arbiter.memory.reserved_bytes + persistent + more <= 100


@pytest.fixture
def broker(short_tmp: Path, poll: Any) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start ``hadar share broker``, and wait until it answers."""
    started: list[subprocess.Popen[str]] = []
    path = short_tmp / "s"

    def answers(begun: subprocess.Popen[str]) -> bool:
        lock = Path(f"{path}.lock")
        return path.exists() and lock.read_text().strip() == str(begun.pid) and _states(path) is not None

    def start() -> subprocess.Popen[str]:
        words = ("share", "broker", "--socket", str(path), "--policy", "fair", "--memory", "1000")
        begun = subprocess.Popen([sys.executable, "-m", "slurm_hadar.cli.main", *words], text=True)
        started.append(begun)
        poll(lambda: answers(begun))
        return begun

    yield start
    for one in started:
        one.kill()
        one.wait()


def _states(path: Path) -> dict[str, str] | None:
    try:
        return {one["label"]: one["state"] for one in status_of(path)["sessions"]}
    except Exception:
        return None


def _comes(path: Path, label: str, comes: dict[str, Session]) -> threading.Thread:
    def join() -> None:
        comes[label] = Session(path, Work(LARGE, label=label), return_s=60.0)

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    return thread


def test_who_waits_for_memory_waits_on_however_often_its_broker_dies(
    broker: Any, short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it has waited before; and comes back to its place, behind those whose memory is there."""
    monkeypatch.setattr(client, "_FIRST_S", 0.0)
    path, comes = short_tmp / "s", {}
    serving = broker()
    comes["a"] = Session(path, Work(LARGE, label="a"), return_s=60.0)
    threads = []
    for label, waits in (("b", 1), ("c", 2)):
        threads.append(_comes(path, label, comes))
        poll(lambda waits=waits: list((_states(path) or {}).values()).count("waiting") == waits)
    for _ in range(2):
        serving.kill()
        serving.wait()
        serving = broker()
        poll(lambda: _states(path) == {"a": "absent", "b": "waiting", "c": "waiting"})
        assert status_of(path)["reserved_bytes"] == 900
    with comes["a"].iteration():
        assert not comes["a"].alone
    assert _states(path) == {"a": "keeps", "b": "waiting", "c": "waiting"} and comes.keys() == {"a"}

    for label, after, thread in (("a", "b", threads[0]), ("b", "c", threads[1])):
        comes[label].close()
        thread.join(20)
        assert not thread.is_alive() and not comes[after].alone
        assert comes.keys() == {*"abc"[: "abc".index(after) + 1]}
    comes["c"].close()


def test_another_process_of_the_same_number_is_nobody_who_was_there(tmp_path: Path) -> None:
    """Nor is what somebody else has written, or another release."""
    path, begun = tmp_path / "s", stat_of(os.getpid()).began
    mine = ledger.Entry(os.getpid(), begun, "x", 0, "", 1, 2, True)
    assert ledger.present(path) == []
    ledger.write(path, [mine._replace(began=begun - 1), mine])
    (former,) = ledger.present(path)
    assert former.entry == mine
    os.close(former.process)
    Path(f"{path}.sessions").write_text("[[1]]")
    assert ledger.present(path) == []
    ledger.remove(path)
    Path(f"{path}.sessions").symlink_to("/etc/passwd")
    assert ledger.present(path) == []
