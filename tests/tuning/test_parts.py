"""What the executor decides by: rungs, brackets, rates, overheads, sites; no process, no Optuna study."""

from __future__ import annotations

import errno
import json
import os
import random
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import AllocationLost, ConfigError, HadarError
from slurm_hadar.tuning.algorithms import brackets_of, promoted
from slurm_hadar.tuning.allocation.allocator import Allocator
from slurm_hadar.tuning.allocation.pool import GpuType, Limits
from slurm_hadar.tuning.allocation.widths import water_level, within
from slurm_hadar.tuning.executor.channel import Message
from slurm_hadar.tuning.executor.estimate import Estimates
from slurm_hadar.tuning.executor.executor import Executor, Stopped
from slurm_hadar.tuning.executor.group import Group
from slurm_hadar.tuning.executor.handler import MessageHandler
from slurm_hadar.tuning.executor.launch import Ended, imports_of
from slurm_hadar.tuning.executor.live import Live, Why
from slurm_hadar.tuning.executor.meter import Meter
from slurm_hadar.tuning.executor.runs import Runs
from slurm_hadar.tuning.executor.site import Sites, sites_here
from slurm_hadar.tuning.population import perturbed
from slurm_hadar.tuning.search import Search
from slurm_hadar.tuning.study.book import Algorithm
from slurm_hadar.tuning.study.profile import Profile, Profiles
from slurm_hadar.tuning.study.record import Record, folder_of, read_events
from slurm_hadar.tuning.trial.wire import Spec
from slurm_hadar.tuning.trial.worker import prepare
from slurm_hadar.tuning.trials import Trial


def test_successive_halving_leaves_one() -> None:
    (bracket,) = brackets_of(Search(Algorithm.SHA, 81))
    assert bracket.trials == 81 and bracket.rungs == (1, 3, 9, 27)
    (bracket,) = brackets_of(Search(Algorithm.SHA, 81, first_rung=2, longest=20))
    assert bracket.rungs == (2, 6)


def test_hyperbands_brackets() -> None:
    """Those of the paper's example, R = 81 and eta = 3, but for what it rounds otherwise."""
    found = brackets_of(Search(Algorithm.HYPERBAND, 143, longest=81))
    assert [b.trials for b in found] == [81, 34, 15, 8, 5]
    assert [b.rungs for b in found] == [(1, 3, 9, 27), (3, 9, 27), (9, 27), (27,), ()]


@given(st.integers(1, 500), st.integers(2, 5), st.sampled_from((Algorithm.SHA, Algorithm.HYPERBAND)))
def test_brackets_have_all_trials(trials: int, eta: int, algorithm: Algorithm) -> None:
    found = brackets_of(Search(algorithm, trials, eta))
    assert sum(b.trials for b in found) == trials and all(b.trials > 0 for b in found)
    assert all(list(b.rungs) == sorted(set(b.rungs)) for b in found)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(2, 5), st.booleans())
def test_the_best_are_promoted(values: list[float], eta: int, maximize: bool) -> None:
    go_on = promoted(list(enumerate(values)), len(values), eta, maximize)
    assert len(go_on) == max(1, len(values) // eta)
    sign = -1 if maximize else 1
    others = [v for n, v in enumerate(values) if n not in go_on]
    assert not others or max(sign * values[n] for n in go_on) <= min(sign * v for v in others)


def test_a_meter_counts_settled_stretches_only() -> None:
    meter = Meter()
    meter.stretch((1, 1))
    for second in range(10):  # the first steps take ten times as long
        meter.beat(max(0, (second - 3) * 10), 1000, True, 64, float(second))
    assert meter.rate == pytest.approx(10.0) and meter.left(None) == 940
    meter.stretch((1, 2))
    assert meter.rate is None
    for second in range(10, 20):
        meter.beat(60 + (second - 10) * 5, 1000, True, 64, float(second))
    assert meter.rates == {(1, 1): pytest.approx(10.0), (1, 2): pytest.approx(5.0)}


def test_a_rung_is_so_many_steps_away() -> None:
    meter = Meter()
    meter.stretch((1, 1))
    for steps in (0, 50, 100, 150):
        meter.beat(steps, 1000, True, 0, steps / 10)
        if steps == 100:
            meter.reported(2, 10.0)
    assert meter.left(6) == 150 and meter.left(100) == 850 and meter.left(None) == 850


def test_overheads_are_medians_of_what_was_seen(tmp_path: Path) -> None:
    profile = Profile()
    for beside in (5.0, 8.0, 10.0):
        profile.saw_packed(10.0, beside, 2)
    profile.saw_wide(10.0, 32.0, 4)
    profile.saw_resize(1.5)
    profile.did_not_fit(3)
    assert profile.alpha == pytest.approx(1.25) and profile.beta == pytest.approx((40 / 32) ** (1 / 3))
    profiles = Profiles(tmp_path / "deep" / "tuning.json")
    profiles.keep("a", profile)
    profiles.keep("b", Profile())
    assert profiles.of("a") == profile and profile.packed == 2
    assert profiles.of("c") == Profile()


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"a": 3}', '{"a": {"alphas": "x", "packed": -1}}'])
def test_a_damaged_memory_is_nothing_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "tuning.json").write_text(text)
    assert Profiles(tmp_path / "tuning.json").of("a") == Profile()


def test_slots_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert sites_here("3", {}).count == 3
    assert [site.gpus for site in sites_here("a:2,b:1", {}).sites] == [(0, 1), (2,)]
    for wanted in (None, "0", "a"):
        with pytest.raises(ConfigError):
            sites_here(wanted, {})
    with pytest.raises(ConfigError, match="--gpus 5000 must be a whole number from 1 to 4096"):
        sites_here("5000", {})


def test_imports_are_read_not_made(tmp_path: Path) -> None:
    file = tmp_path / "study.py"
    file.write_text("import torch.nn, os\ndef f():\n    from slurm_hadar import sharing\n    from . import x\n")
    assert imports_of(file) == {"torch", "os", "slurm_hadar"}
    file.write_text("def f(:")
    with pytest.raises(ConfigError):
        imports_of(file)


def test_records_that_were_cut(tmp_path: Path) -> None:
    folder = folder_of(f"sqlite:///{tmp_path}/a.db", "s/../t")
    assert folder == tmp_path / "a.db.hadar" / "s_.._t"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text(json.dumps({"time": 1, "event": "began"}) + '\n{"time": 2, "ev\n[]\n')
    assert read_events(folder) == [{"time": 1, "event": "began"}]


def test_the_tuner_of_the_run_before_is_waited_for(tmp_path: Path) -> None:
    """Said once; refused at once where there was no run before."""
    before, said = Record(tmp_path, print), []

    def say(line: str) -> None:
        said.append(line)
        before.close()

    with pytest.raises(ConfigError, match="another tuner is at work"):
        Record(tmp_path, say)
    assert not said
    Record(tmp_path, say, patience_s=60.0).close()
    assert len(said) == 1 and "waiting for its end" in said[0]


def test_parameters_are_perturbed_within_their_bounds() -> None:
    def bounds(low: float, high: float, step: Any = None, log: bool = False) -> SimpleNamespace:
        return SimpleNamespace(low=low, high=high, step=step, log=log)

    distributions = {"lr": bounds(1e-4, 1.0, log=True), "n": bounds(2, 10, step=2), "m": bounds(0.0, 0.9),
                     "c": SimpleNamespace(choices=("a", "b"))}  # fmt: skip
    trial: Any = SimpleNamespace(params={"lr": 0.9, "n": 8, "m": 0.5, "c": "a"}, distributions=distributions)
    for seed in range(200):
        found = perturbed(trial, random.Random(seed))
        assert 1e-4 <= found["lr"] <= 1.0 and 0 <= found["m"] <= 0.9 and found["c"] in "ab"
        assert found["n"] in (2, 4, 6, 8, 10) and isinstance(found["n"], int)
    assert perturbed(trial, random.Random(1)) == perturbed(trial, random.Random(1))


POOL = (GpuType("g", 4),)


def test_widths_divide_the_batch() -> None:
    """Three GPUs cannot share 32 samples; one that is made for one GPU gets one."""
    widths = [g.width for g in water_level([Trial("a", 100.0, batch=32)], (GpuType("g", 3),), Limits(1, 4)).grants if g]
    assert widths == [2]
    (grant,) = water_level([Trial("a", 100.0, batch=1)], POOL, Limits(2, 4)).grants
    assert grant is not None and grant.width <= 1


def test_within_a_deadline_the_shortest_come_first() -> None:
    trials = [Trial("long", 1000.0, batch=1), Trial("a", 10.0), Trial("b", 12.0), Trial("c", 11.0), Trial("d", 13.0)]
    grants = within(trials, POOL, Limits(1, 1), deadline_s=20.0).grants
    assert grants[0] is None and all(grants[1:])


def test_all_at_once_where_that_ends_sooner() -> None:
    """Twenty-seven almost equal trials, four on each of eight GPUs: none waits for another round."""
    trials = [Trial(str(n), 300.0 + n, alpha=1.03, batch=1) for n in range(27)]
    assert all(water_level(trials, (GpuType("g", 8),), Limits(4, 1)).grants)


def test_another_node_with_gpus_as_fast_does_as_well() -> None:
    """Widths do not know who is where: what waits for a node whose GPUs are taken starts on its like."""
    allocator = Allocator((GpuType("v100@a", 2), GpuType("v100@b", 2)), Limits(1, 1))
    allocator.submit([Trial(str(n), 10.0, batch=1) for n in range(4)], 0.0)
    on = {run.trial.trial_id: run.grant.gpu_type for run in allocator.start()}
    for trial in [name for name, kind in on.items() if kind == "v100@a"]:
        allocator.leave(trial)
    allocator.submit([Trial("new", 5.0, batch=1), Trial("newer", 5.0, batch=1)], 1.0)
    assert {run.grant.gpu_type for run in allocator.start()} == {"v100@a"} and not allocator.waiting


def test_a_change_in_place_is_no_restart() -> None:
    """Who is left alone on its GPU has all of it; who must move to grow is started anew."""
    allocator = Allocator((GpuType("g", 1),), Limits(2, 1), resize_s=1e9)
    allocator.submit([Trial("a", 10.0, 1.3), Trial("b", 20.0, 1.3)], 0.0)
    assert {run.grant.width for run in allocator.start()} == {Fraction(1, 2)}
    allocator.leave("a")
    ((run, anew),) = allocator.resize()
    assert run.trial.trial_id == "b" and run.grant.width == 1 and not anew
    assert allocator.resize(fixed={"b"}) == []


def test_fewer_on_a_gpu_from_now_on() -> None:
    allocator = Allocator((GpuType("g", 2),), Limits(2, 1))
    allocator.submit([Trial(str(n), 10.0, 1.1) for n in range(4)], 0.0)
    assert len(allocator.start()) == 4
    allocator.pack_no_more_than(1)
    allocator.leave("0")
    allocator.submit([Trial("new", 10.0, 1.1)], 1.0)
    assert not [run for run in allocator.start() if len(allocator.gpus.places("new")) and run.grant.width < 1]


def test_a_node_that_is_lost_takes_its_trials_only() -> None:
    """Those on it have nothing any more, and wait for what is left; the others stay where they are."""
    pool = (GpuType("v100@a", 2), GpuType("p100@b", 2, 0.5))
    allocator = Allocator(pool, Limits(1, 1))
    allocator.submit([Trial(str(n), 10.0, batch=1) for n in range(4)], 0.0)
    on = {run.trial.trial_id: run.grant.gpu_type for run in allocator.start()}
    places = {name: allocator.gpus.places(name) for name in on}
    lost = allocator.change_pool((GpuType("p100@b", 2),))
    assert set(lost) == {name for name, kind in on.items() if kind == "v100@a"} and len(lost) == 2
    assert all(allocator.gpus.places(name) == (() if name in lost else places[name]) for name in on)
    assert all(run.speed == 1.0 for run in allocator.running.values())
    allocator.submit([Trial(name, 5.0, batch=1) for name in lost], 1.0)
    assert allocator.start() == []
    assert allocator.change_pool((GpuType("p100@b", 2), GpuType("v100@c", 2))) == []
    allocator.submit([], 2.0)
    assert {run.grant.gpu_type for run in allocator.start()} == {"v100@c"}


def test_what_waits_is_judged_by_what_is_known_now() -> None:
    """Submitted once more it waits once, with its new length."""
    allocator = Allocator(POOL, Limits(1, 4))
    allocator.submit([Trial("a", 60.0)], 0.0)
    allocator.submit([Trial("a", 1.0)], 0.0)
    assert [trial.budget_s for trial, _ in allocator.waiting] == [1.0]


def live(number: int, steps: int, rate: float | None) -> Live:
    """A trial whose reports come every ten steps, thirty in all."""
    found = Live(number, until=3)
    if steps:
        found.meter.stretch((1, 1))
        found.meter.beat(steps, 30, True, 0, 0.0)
        found.meter.reported(steps // 10, 0.0)
    if rate is not None:
        found.meter.rates[1, 1] = rate
    return found


def test_a_trial_of_which_nothing_is_known_is_as_the_others() -> None:
    """As long as they are in all, not as what is left of them; at their pace where its own is not known."""
    estimates = Estimates(Profile(), {})
    known, promoted_one, new = live(0, 20, 10.0), live(1, 10, None), live(2, 0, None)
    group = [known, promoted_one, new]
    assert [estimates.trial(one, group).budget_s for one in group] == pytest.approx([1.0, 2.0, 3.0])


@pytest.mark.parametrize("world", [1, 2])
def test_one_process_alone_is_not_distributed(world: int, tmp_path: Path) -> None:
    """Libraries that see a rank look for the others."""
    spec = Spec("", "", "", 3, 1, "study.py", "objective", str(tmp_path), (1,) * world, "v100", world, 0)
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6", "RANK": "7", "SLURM_JOB_ID": "1"}
    prepare(environ, spec, 0, tmp_path)
    assert environ["CUDA_VISIBLE_DEVICES"].startswith("5") and "SLURM_JOB_ID" not in environ
    assert {name: environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == (
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        if world == 2
        else dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    )


def test_who_ends_with_the_last_straw_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials are told of together, and the first of them ends the run; else the tuner waits for the other's end
    until its grace is over."""
    heard = []

    def fails(one: Ended) -> None:
        heard.append(one.run[0])
        raise HadarError("the first 10 trials have failed")

    monkeypatch.setattr("slurm_hadar.tuning.executor.executor.TICK_S", 0.01)
    launcher: Any = SimpleNamespace(files=list, ended=lambda: [Ended((0, 0), 1), Ended((1, 0), 1)])
    state: Any = SimpleNamespace(book=None, record=None, lives={number: Live(number) for number in (0, 1)})
    executor = Executor(state, launcher)
    monkeypatch.setattr(executor._ends, "ended", fails)  # noqa: SLF001 - what follows from an end is not asked here
    try:
        with pytest.raises(HadarError, match="have failed"):
            executor._hear()  # noqa: SLF001 - a step of its loop
    finally:
        executor.close()
    assert heard == [0, 1]


def test_what_the_tuner_cannot_open_is_no_fault_of_the_objective() -> None:
    def suggest(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    told: list[str] = []
    live = Live(0)
    live.process = (0, 0)
    channel: Any = SimpleNamespace(
        answer=lambda *_, **__: told.append("answer"), say_gone=lambda _: told.append("gone")
    )
    state: Any = SimpleNamespace(lives={0: live}, book=SimpleNamespace(suggest=suggest), settings=None)
    asked = {"kind": "float", "name": "x", "arguments": {}}
    with pytest.raises(HadarError, match="trial 0 cannot be answered: Too many open files"):
        MessageHandler(state, channel).handle(Message(b"", True, "suggest", 0, 0, 0, asked))
    assert told == ["gone"]


@pytest.mark.parametrize("told", [True, False])
def test_who_is_told_to_stop_stops_though_its_job_ends_with_it(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is cancelled tells tuner and trials alike, and is over for Slurm when the first trial has ended."""

    def survey() -> Sites:
        raise AllocationLost("job 7 is CANCELLED")

    monkeypatch.setattr("slurm_hadar.tuning.executor.executor.TICK_S", 0.01)
    launcher: Any = SimpleNamespace(files=list, ended=lambda: [Ended((0, 0), -15)])
    book, group = SimpleNamespace(lay_down=list), SimpleNamespace(members=[], over=False, late=False, next_legs=list)
    state: Any = SimpleNamespace(
        book=book, record=SimpleNamespace(stop_requested=told), lives={0: Live(0)}, running=list, reached=None,
        new_allocator=list, submit=list,
    )  # fmt: skip
    executor = Executor(state, launcher, survey=survey)
    for part, step in (("_runs", "reconcile"), ("_runs", "enforce"), ("_runs", "clear"), ("_ends", "ended")):
        monkeypatch.setattr(getattr(executor, part), step, lambda *_: None)
    monkeypatch.setattr(executor, "_feed", lambda _: None)
    try:
        with pytest.raises(Stopped if told else AllocationLost):
            executor._play(cast("Group", group))  # noqa: SLF001 - its loop
    finally:
        executor.close()


@pytest.mark.parametrize("state", ["complete", "failed"])
def test_who_has_told_its_result_does_not_hold_its_gpu_for_ever(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that the objective has left, or its function for the end: the process has a while, then it is killed,
    which is said once. One that has told nothing has all the time that it needs."""
    clock, killed, told = [1000.0], list[tuple[int, int]](), list[str]()
    monkeypatch.setattr("slurm_hadar.tuning.executor.runs.time.monotonic", lambda: clock[0])
    over, busy = Live(0, process=(0, 0)), Live(1, process=(1, 0))
    settings: Any = SimpleNamespace(time_limit_s=None)
    state_: Any = SimpleNamespace(
        book=None, settings=settings, say=told.append, lives={0: over, 1: busy}, running=lambda: [over, busy]
    )
    channel: Any = SimpleNamespace(token="0" * 64, answer=lambda *_: None)
    launcher: Any = SimpleNamespace(kill=lambda run, _step: killed.append(run))
    runs, handler = Runs(state_, channel, launcher), MessageHandler(state_, channel)

    handler.handle(Message(b"", True, "end", 0, 0, 0, {"state": state, "value": 1.0, "text": "ValueError"}))
    for second in range(60):
        clock[0] = 1000.0 + second
        runs.enforce()
        assert bool(killed) == (second > 30)
    assert set(killed) == {(0, 0)} and len(told) == 1 and told[0].startswith("trial 0: its objective ended 30 s ago")
    assert over.outcome is not None and over.outcome["state"] == state and over.why is None

    busy.why, busy.asked_s = Why.RUNG, clock[0]
    clock[0] += 100.0
    runs.enforce()
    assert set(killed) == {(0, 0)}
