"""When a GPU is waited for, and what is read off it, by a pretended one; what a real one does is in tests/gpu."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_hadar.sharing import cuda as module
from slurm_hadar.sharing import member as members
from slurm_hadar.sharing.cuda import Gpu
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.member import Member

GIB = 2**30


class _Cuda:
    """A queue of work: ``order`` puts some milliseconds into it, ``pass_ms`` lets the GPU work."""

    def __init__(self) -> None:
        self.queued_ms = self.now_ms = 0.0
        self.calls: list[str] = []
        self.capture = False
        self.held, self.peak, self.most = 3 * GIB, 5 * GIB, 80.0 * GIB

    def order(self, ms: float) -> None:
        self.queued_ms = max(self.queued_ms, self.now_ms) + ms

    def pass_ms(self, ms: float) -> None:
        self.now_ms += ms

    def Event(self, enable_timing: bool) -> _Event:  # noqa: N802 - PyTorch's name
        assert enable_timing
        return _Event(self)

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capture

    def synchronize(self) -> None:
        assert not self.capture, "this breaks a capture"
        self.calls.append("synchronize")
        self.now_ms = max(self.now_ms, self.queued_ms)

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def memory_allocated(self) -> int:
        self.calls.append("memory")
        return self.held

    def max_memory_allocated(self) -> int:
        return self.peak

    def memory_reserved(self) -> int:
        return self.peak

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.held

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _device: int) -> Any:
        return SimpleNamespace(total_memory=80 * GIB)

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.most = fraction * 80 * GIB


class _Event:
    def __init__(self, cuda: _Cuda) -> None:
        self._cuda, self.at_ms = cuda, 0.0

    def record(self) -> None:
        assert not self._cuda.capture, "it would be a part of the graph"
        self.at_ms = max(self._cuda.queued_ms, self._cuda.now_ms)

    def query(self) -> bool:
        return self.at_ms <= self._cuda.now_ms

    def synchronize(self) -> None:
        self._cuda.calls.append("event")
        self._cuda.now_ms = max(self._cuda.now_ms, self.at_ms)

    def elapsed_time(self, end: _Event) -> float:
        return end.at_ms - self.at_ms


class _Session:
    """Notes turns; wants one back when it is told so."""

    def __init__(self) -> None:
        self.seen, self.spent_ns, self.recalled = "", 0, False
        self.settles: list[bool] = []
        self.told: list[tuple[int, ...]] = []
        self.may_keep = False
        self.free: Any = None

    def take(self) -> None:
        self.seen += "("

    def took(self, *taken: int) -> None:
        self.told.append(taken)

    def give_back(self, settle: Any = None, spent_ns: int | None = None) -> None:
        self.seen += ")"
        self.spent_ns += spent_ns or 0
        self.settles.append(settle is not None)
        if self.recalled and settle is not None:
            self.spent_ns += settle()[0]

    def heed(self) -> None:
        pass

    def until_said(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    found = _Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    monkeypatch.setattr(module, "Overhead", lambda: SimpleNamespace(bytes_beside=lambda _: 0))
    return found


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> _Session:
    found = _Session()
    monkeypatch.setattr(members, "_joined", lambda _: found)
    return found


def _iteration(member: Member, cuda: _Cuda, ms: float) -> None:
    model = object()
    member.before_forward(model, True)
    cuda.order(ms)
    member.after_forward(model)
    member.before_step()
    member.after_step()


def test_a_job_alone_runs_ahead_of_its_gpu_by_one_iteration(cuda: _Cuda, session: _Session) -> None:
    member = Member({})
    for done in range(5):
        _iteration(member, cuda, 20.0)
        cuda.pass_ms(1.0)
        assert session.spent_ns == done * 20_000_000  # one is under way
    assert "synchronize" not in cuda.calls
    cuda.pass_ms(40.0)
    _iteration(member, cuda, 20.0)
    assert session.spent_ns == 5 * 20_000_000


def test_where_others_want_turns_each_iteration_is_waited_for(
    cuda: _Cuda, session: _Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as that was not long ago."""
    member = Member({})
    _iteration(member, cuda, 20.0)
    session.recalled = True
    _iteration(member, cuda, 20.0)
    assert cuda.calls.count("synchronize") == 1 and "empty_cache" not in cuda.calls
    assert session.spent_ns == 2 * 20_000_000

    session.recalled = False
    _iteration(member, cuda, 20.0)
    assert cuda.calls.count("synchronize") == 2 and session.spent_ns == 3 * 20_000_000
    assert session.settles == [True, True, False]  # then the broker can take the turn back by itself
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + module.OTHERS_S))
    for _ in range(3):
        _iteration(member, cuda, 20.0)
    assert cuda.calls.count("synchronize") == 2 and session.seen == "()" * 6


def test_the_first_turn_in_which_a_gpu_is_used_is_not_over_before_it_is_done(
    cuda: _Cuda, session: _Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is brought to it within its forward pass."""
    monkeypatch.setattr(_Cuda, "is_initialized", lambda self: self.queued_ms > 0)
    session.recalled = True
    _iteration(Member({}), cuda, 20.0)
    assert session.settles == [True] and cuda.now_ms == 20.0


def test_short_iterations_run_ahead_beside_others_too(cuda: _Cuda, session: _Session) -> None:
    """By one, which costs the others less than it saves."""
    member = Member({})
    _iteration(member, cuda, 1.0)
    session.recalled = True
    _iteration(member, cuda, 1.0)
    session.recalled = False
    for _ in range(4):
        _iteration(member, cuda, 1.0)
    assert cuda.calls.count("synchronize") == 1 and cuda.queued_ms - cuda.now_ms == 1.0


@pytest.mark.parametrize(("more", "most"), [({}, 11.0), ({"HADAR_SHARE_LEARNED": "1"}, 80.0)])
def test_who_has_told_its_memory_itself_is_held_to_it(
    cuda: _Cuda, session: _Session, more: dict[str, str], most: float
) -> None:
    """Not who is expected to need what its like took."""
    member = Member({"HADAR_SHARE_PERSISTENT": "4GiB", "HADAR_SHARE_EPHEMERAL": "6GiB"} | more)
    _iteration(member, cuda, 20.0)
    assert session.seen == "()" and cuda.most == pytest.approx(most * GIB)


def test_memory_of_an_iteration_goes_to_the_others_where_that_was_told(cuda: _Cuda, session: _Session) -> None:
    member = Member({"HADAR_SHARE_EPHEMERAL": "2G"})
    session.recalled = True
    _iteration(member, cuda, 20.0)
    assert cuda.calls[-2:] == ["synchronize", "empty_cache"]


def test_a_gpu_may_be_used_before_a_script_marks_its_first_iteration(cuda: _Cuda, session: _Session) -> None:
    member = Member({})
    with member.iteration():
        cuda.order(20.0)
    assert session.seen == "()" and cuda.queued_ms == 20.0


def test_memory_of_an_iteration_is_kept_as_long_as_nobody_needs_it(cuda: _Cuda, session: _Session) -> None:
    member = Member({"HADAR_SHARE_EPHEMERAL": "2G"})
    session.recalled = session.may_keep = True
    for _ in range(3):
        _iteration(member, cuda, 20.0)
    assert "empty_cache" not in cuda.calls and session.settles == [True, False, False]
    session.free()
    assert cuda.calls[-1] == "empty_cache"
    session.may_keep = False
    _iteration(member, cuda, 20.0)
    assert cuda.calls[-2:] == ["synchronize", "empty_cache"] and session.settles[-1]


def test_memory_is_added_up_now_and_then_and_no_peak_is_missed(
    cuda: _Cuda, session: _Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member({})
    for _ in range(50):
        _iteration(member, cuda, 1.0)
    assert cuda.calls.count("memory") <= 3 and session.told[0] == (3 * GIB, 2 * GIB)
    cuda.peak = 9 * GIB
    _iteration(member, cuda, 1.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 1.0))
    _iteration(member, cuda, 1.0)
    assert session.told[-1] == (3 * GIB, 6 * GIB)


def test_a_capture_is_left_alone(cuda: _Cuda, session: _Session) -> None:
    """What is noted for a CUDA graph is not done: the turn goes on, and ends with the next iteration."""
    member = Member({})
    session.recalled = True
    _iteration(member, cuda, 20.0)
    cuda.capture = True
    calls = len(cuda.calls)
    gpu = Gpu(cuda, None)
    gpu.free()
    assert gpu.settle()[0] == 0  # one that was asked for its turn just before
    _iteration(member, cuda, 0.0)
    _iteration(member, cuda, 0.0)
    assert len(cuda.calls) == calls and session.seen == "()("
    cuda.capture = False
    _iteration(member, cuda, 20.0)
    assert session.seen == "()()" and session.spent_ns == 20_000_000  # when it began has not been stamped


@pytest.mark.parametrize(
    ("told", "most"),
    [(None, 80.0), (Demand(4 * GIB, 6 * GIB), 10.0), (Demand(79 * GIB, 0), 80.0), (Demand(GIB // 2, 0), 80.0)],
    ids=["nothing", "some", "nearly all", "less than the context"],
)
def test_a_job_is_held_to_what_it_has_told(
    cuda: _Cuda, monkeypatch: pytest.MonkeyPatch, told: Demand | None, most: float
) -> None:
    """And a tenth, less what is there beside PyTorch's memory."""
    monkeypatch.setattr(module, "Overhead", lambda: SimpleNamespace(bytes_beside=lambda _: GIB))
    Gpu(cuda, told)
    assert cuda.most == pytest.approx(most * GIB)
