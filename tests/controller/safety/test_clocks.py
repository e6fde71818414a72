"""What a controller must survive of clocks: Slurm's or its own that are wrong, or set while it runs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.answers.lines import line_of
from slurm_hadar.errors import SlurmError
from slurm_hadar.model import JobState, Plan
from slurm_hadar.testing.fake_slurm import FakeSlurm
from tests.controller.scripted import Scripted, report


class WrongClock(FakeSlurm):
    """A Slurm whose clock is ahead of ours."""

    ahead = 0.0

    def clock_ahead_s(self) -> tuple[float, float]:
        return self.ahead - 0.5, self.ahead + 0.5


@pytest.mark.parametrize(("ahead", "acts"), [(0.0, True), (4.0, True), (-3600.0, False), (60.0, False)])
def test_nothing_is_changed_by_a_wrong_clock(bench: Callable[..., Any], ahead: float, acts: bool) -> None:
    """A lease is sent as a moment of this host's clock: an hour ahead, it would last an hour too long."""
    one = bench()
    one.slurm = WrongClock({"v100-1": ("v100", 2)})
    one.slurm.ahead = ahead
    one.slurm.submit()
    controller = one.new_controller()

    result = controller.run_round()

    assert bool(one.slurm.batches) is acts and ("clock" in result.record.note) is not acts
    one.slurm.ahead = 0.0
    controller.run_round()
    assert one.slurm.batches, "when both agree again, rounds go on"


def test_nothing_is_forgotten_by_a_wrong_clock(bench: Callable[..., Any], monkeypatch: Any) -> None:
    """A host that comes up forty days ahead, in the mode of the first days."""
    one, real = bench({"v100-1": ("v100", 2)}, "controller.mode=observe"), time.time
    one.slurm = WrongClock({"v100-1": ("v100", 2)})
    job = one.slurm.submit()
    one.slurm.start(job, "v100-1")
    one.new_controller().run_round()
    monkeypatch.setattr(time, "time", lambda: real() + 40 * 86400)
    one.slurm.ahead = -40.0 * 86400
    assert "clock" in one.new_controller().run_round().record.note
    monkeypatch.undo()
    one.slurm.ahead = 0.0
    one.new_controller().run_round()

    assert [r["skipped"] for r in one.journal.rounds(9)] == [0, 1, 0]
    assert one.journal.load_jobs()[job].attained_s < 60


def test_a_slurm_that_does_not_tell_the_time(bench: Callable[..., Any], monkeypatch: Any, caplog: Any) -> None:
    """Rounds go on, and one warning says what is not looked after."""
    one = bench()

    def refused(_slurm: FakeSlurm) -> None:
        raise SlurmError("sdiag failed: Access denied")

    monkeypatch.setattr(FakeSlurm, "clock_ahead_s", refused)
    one.slurm.submit()
    controller = one.new_controller()
    controller.run_round()
    controller.run_round()

    assert one.slurm.batches
    assert sum("clock is not known (sdiag failed: Access denied)" in r.message for r in caplog.records) == 1


def test_no_lease_outlasts_a_clock_that_is_set_back(bench: Callable[..., Any], monkeypatch: Any) -> None:
    """Slurm's clock with it. Were the controller to die then, the job would wait for an hour."""
    one, real = bench({"v100-1": ("v100", 2)}), time.time
    one.slurm.start(one.slurm.submit(2, "hadar:", req_nodes=("v100-1",)), "v100-1")
    job = one.slurm.submit(2)
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    controller = one.new_controller()
    controller.run_round()
    assert one.slurm.jobs[job].eligible > real() + 3000
    monkeypatch.undo()
    controller.run_round()
    lasts_s = one.slurm.jobs[job].eligible - real()
    controller.run_round()

    assert 0 < lasts_s < 100
    assert len(one.slurm.batches) == 2, "one that lasts as long as it should is left as it is"


def test_no_job_has_run_for_an_hour_longer_when_the_clock_was_set(
    bench: Callable[..., Any], monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Slurm's clock with it, ahead and back. Nor has a start taken an hour, which no move would ever be worth; what
    begins after that is measured as ever."""
    one, real = bench(), time.time
    one.slurm = WrongClock({"v100-1": ("v100", 2)})
    controller = one.new_controller()
    job = one.slurm.submit()
    one.slurm.start(job, "v100-1")
    controller.run_round()
    report(one, job, "hello")
    for steps in (1, 5):
        report(one, job, steps=steps)
    controller.run_round()
    found = []
    for ahead_s in (3600, 0, -3600):
        monkeypatch.setattr(time, "time", lambda ahead_s=ahead_s: real() + ahead_s)
        controller.run_round()
        report(one, job, steps=9)
        controller.run_round()
        found.append(one.journal.load_jobs()[job])

    assert all(0 <= record.attained_s < 60 and 0 <= record.start_s < 60 for record in found)
    assert sum(gpu_s for gpu_s, _ in one.journal.usage().values()) < 60
    told = [message for message in caplog.messages if "was set by" in message]
    assert ["restart slurmctld" in message for message in told] == [False, True, True]


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_no_job_has_waited_for_an_hour_longer_when_the_clock_was_set(
    bench: Callable[..., Any], monkeypatch: Any, by_s: float
) -> None:
    """Nor shorter: neither does a job go before others for it, nor is one stopped that had only begun; and who is let
    alone for a while is so for as long as was meant."""
    one, real = bench(), time.time
    one.slurm = WrongClock({"v100-1": ("v100", 2)})
    controller = one.new_controller()
    old = one.slurm.submit()
    record = controller.run_round().seen.records[old]
    record.keep_off(["v100-1"], real() + 600.0)
    record.unsaved_until = record.limit_asked = real() + 600.0

    monkeypatch.setattr(time, "time", lambda: real() + by_s)
    result = controller.run_round()

    job, now = result.seen.snapshot.job[old], result.seen.snapshot.time
    assert 0.0 <= now - job.arrival < 60.0
    assert line_of(result.seen.raw[old], record, job.placement, None, {}).arrival == job.arrival, "as it is shown"
    until = [*record.avoid.values(), record.unsaved_until, record.limit_asked]
    assert all(540.0 < moment - now <= 601.0 for moment in until)
    assert one.journal.load_jobs()[old].arrived == job.arrival


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
@pytest.mark.parametrize("refused", [True, False])
def test_who_is_left_alone_is_so_for_as_long_as_before_when_the_clock_was_set(
    bench: Callable[..., Any], monkeypatch: Any, by_s: float, refused: bool
) -> None:
    """Since too many writes were refused, or for what Slurm has said of it."""
    one, real = bench(None, "controller.round_s=600", "guard.max_failed_writes=1"), time.time
    one.slurm = WrongClock({"v100-1": ("v100", 2)})
    job, controller = one.slurm.submit(), one.new_controller()
    if refused:
        one.slurm.refuse[job] = "no such luck"
    else:
        one.slurm.jobs[job] = replace(one.slurm.jobs[job], reason="QOSGrpGRES", qos="busy")
    controller.run_round()
    monkeypatch.setattr(time, "time", lambda: real() + by_s)
    result = controller.run_round()

    said = result.record.note if refused else str(result.seen.snapshot.job[job].blocked)
    left = re.search(r"again in (\d+) s", said)
    assert left and 540 < int(left[1]) <= 600, said


SET_BACK = """
import time
real, by_s = time.time, [0.0]
time.time = lambda: real() + by_s[0]
from slurm_hadar.controller.safety.quarantine import Quarantine
quarantine = Quarantine()
quarantine.put("7", "looking at it", ValueError("odd"))
by_s[0] = -3600.0
print(quarantine.reason("7"))
"""


def test_a_quarantine_lasts_no_hour_longer_when_the_clock_was_set_back() -> None:
    done = subprocess.run([sys.executable, "-c", SET_BACK], capture_output=True, text=True, check=True)
    assert "for another 60 s" in done.stdout


def test_a_clock_that_is_set_in_the_middle_of_a_round(bench: Callable[..., Any], monkeypatch: Any) -> None:
    """What was not yet sent is left to the next round, which asks Slurm what time it is."""
    one, real = bench(), time.time
    one.slurm = WrongClock({"v100-1": ("v100", 2)})
    job = one.slurm.submit()
    controller = one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}}))
    allocate = Scripted.allocate

    def set_clock(policy: Scripted, snapshot: Any) -> Plan:
        monkeypatch.setattr(time, "time", lambda: real() + 3600)
        return allocate(policy, snapshot)

    monkeypatch.setattr(Scripted, "allocate", set_clock)
    result = controller.run_round()

    assert "clock was set" in result.record.note and not one.slurm.batches
    assert one.slurm.jobs[job].state is JobState.PENDING
