"""Studies, storages and objectives that are not as they ought to be."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

optuna = pytest.importorskip("optuna")

from slurm_hadar.cli.systems.tune import tune  # noqa: E402
from slurm_hadar.errors import ConfigError  # noqa: E402
from slurm_hadar.tuning import algorithms, population, session  # noqa: E402
from slurm_hadar.tuning.executor.launch import Ended, LocalLauncher  # noqa: E402
from slurm_hadar.tuning.executor.site import Site  # noqa: E402
from slurm_hadar.tuning.study.book import Book  # noqa: E402
from slurm_hadar.tuning.study.record import Record, folder_of  # noqa: E402
from slurm_hadar.tuning.trial.wire import Spec  # noqa: E402
from tests.tuning.conftest import LOOP  # noqa: E402

Study = Callable[..., str]
RANDOM = ("--algorithm", "random", "--gpus", "2")
PLAIN = "def objective(trial):\n    {before}\n    return trial.suggest_float('x', 0, 1)\n"
SAME_NAME = "study-objective"


def member(number: int, reports: dict[int, float]) -> Any:
    """A trial that runs."""
    running = optuna.trial.TrialState.RUNNING
    made = optuna.trial.create_trial(state=running, intermediate_values=reports, user_attrs={population.SLOT: number})
    made.number = number
    return made


def test_a_folder_is_one_studys(tmp_path: Path) -> None:
    """Also one that was left behind by a study that was deleted; that of an older version is taken over."""
    record = Record(tmp_path, print)
    record.trial_folder(0).mkdir(parents=True)
    with pytest.raises(ConfigError, match="has the checkpoints of another study"):
        record.belongs("new", fresh=True)
    record.belongs("mine", fresh=False)
    record.belongs("mine", fresh=False)
    with pytest.raises(ConfigError, match="another study"):
        record.belongs("other", fresh=False)
    record.close()


@pytest.mark.parametrize("name", [".", "..", "a/b", "../../x", "a b"])
def test_a_name_is_one_folder_beside_the_database(name: str) -> None:
    folder = folder_of("sqlite:////a/tune.db", name)
    assert folder.parent == Path("/a/tune.db.hadar") and folder.name not in ("", ".", "..")


def test_a_search_after_the_study_was_deleted_is_refused(tuner: Any, study: Study) -> None:
    """Its trials would go on from the checkpoints of the old one's."""
    words = ("run", study(steps=2, pace=0), "--trials", "1", *RANDOM)
    assert tuner(*words)[0] == 0
    (tuner.folder / "tune.db").unlink()
    code, _, said = tuner(*words)
    assert code == 1 and "another study of that name (or of one like it): move or remove it" in said


def test_a_study_that_is_refused_is_not_made(tuner: Any, study: Study) -> None:
    """Its name makes the same folder as that of another one."""
    words = ("run", study(steps=2, pace=0), "--trials", "1", *RANDOM, "--study")
    assert tuner(*words, "a/b")[0] == 0

    code, _, said = tuner(*words, "a b")

    assert code == 1 and "or of one like it" in said
    assert optuna.get_all_study_names(f"sqlite:///{tuner.folder}/tune.db") == ["a/b"]


@pytest.mark.parametrize("url", ["sqlite:////", "sqlite:///", "sqlite:////tmp"])
def test_a_storage_that_names_no_file(url: str) -> None:
    with pytest.raises(ConfigError, match="is a directory; name a file in it"):
        folder_of(url, "s")


def test_a_storage_without_a_study(tmp_path: Path) -> None:
    """Whose tuner was killed before it had made one."""
    url = f"sqlite:///{tmp_path}/tune.db"
    optuna.storages.RDBStorage(url)

    for study in (None, "s"):
        with pytest.raises(ConfigError, match="no study yet; begin one with hadar tune run"):
            session.options_of(url, study)


def test_trials_have_random_numbers_of_their_own(tuner: Any, study: Study) -> None:
    pytest.importorskip("torch")
    text = "import numpy, torch\n" + PLAIN.format(
        before="trial.set_user_attr('drawn', [float(numpy.random.rand()), float(torch.rand(1))])"
    )
    code, _, said = tuner("run", study(text), "--trials", "3", *RANDOM)
    assert code == 0, said
    drawn = [t.user_attrs["drawn"] for t in tuner.trials()]
    assert len({n for n, _ in drawn}) == len({t for _, t in drawn}) == 3


@pytest.mark.parametrize(
    ("reports", "value"),
    [
        ({1: 5.0, 3: 4.0}, 4.0), ({1: 5.0, 3: float("nan")}, None), ({1: 5.0, 3: float("inf")}, None),
        ({1: float("nan"), 2: 3.0}, 3.0), ({2: 7.0, 4: 6.0}, 7.0), ({10: 2.0}, 2.0), ({}, None),
    ],
)  # fmt: skip
def test_what_a_trial_is_ranked_by_at_a_rung(reports: dict[int, float], value: float | None) -> None:
    """By its last report up to it, which has to be a number; by its first where reports are further apart."""
    assert algorithms.value_at(member(0, reports), 3) == value


def test_who_has_diverged_is_nobodys_model() -> None:
    """It is among the worst of a population, never among the best."""
    dice = SimpleNamespace(choice=lambda found: found[0])
    values = [float("nan"), 1.0, 2.0, 3.0, float("nan"), 4.0, 5.0, 6.0]
    trials = [member(i, {5: v}) for i, v in enumerate(values)]
    better = [population.model_for(t, trials, False, 1, dice) for t in trials]
    assert [b is not None for b in better] == [True, False, False, False, True, False, False, False]
    assert {b.number for b in better if b is not None} == {1}


def test_a_message_that_is_too_large_is_refused_at_once(tuner: Any, study: Study) -> None:
    text = PLAIN.format(before="trial.set_user_attr('all', list(range(400_000)))")
    code, _, said = tuner("run", study(text), "--trials", "1", *RANDOM)
    assert code == 1 and re.search(r"ValueError: attribute: [\d,]+ bytes are more than", said), said


def test_reports_from_threads(tuner: Any, study: Study) -> None:
    """One question at a time, and each is answered."""
    text = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def objective(trial):\n"
        "    with ThreadPoolExecutor(8) as pool: list(pool.map(lambda n: trial.report(0.5, n), range(64)))\n"
        "    return trial.suggest_float('x', 0, 1)\n"
    )
    code, _, said = tuner("run", study(text), "--trials", "1", *RANDOM)
    assert code == 0, said
    assert len(tuner.trials()[0].intermediate_values) == 64


@pytest.mark.parametrize("directions", [["minimize"], ["minimize", "maximize"]])
def test_a_study_that_is_there_with_another_aim(directions: list[str], tuner: Any, study: Study) -> None:
    storage = optuna.storages.RDBStorage(f"sqlite:///{tuner.folder}/tune.db")
    optuna.create_study(storage=storage, study_name=SAME_NAME, directions=directions)
    storage.engine.dispose()
    words = ("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM, "--direction", "maximize")
    code, _, said = tuner(*words)
    assert code == 1 and "Traceback" not in said
    assert ("is there already, and is not to maximize" if len(directions) == 1 else "has 2 objectives") in said


def test_a_storage_that_is_locked_when_the_search_begins_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tune.db"

    def open_it(say: Callable[[str], None]) -> Book:
        return Book.open(url, "s", "minimize", None, None, say)

    open_it(print)
    holder = sqlite3.connect(tmp_path / "tune.db", check_same_thread=False, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    said: list[str] = []

    def release() -> None:
        until = time.monotonic() + 60
        while not said and time.monotonic() < until:
            time.sleep(0.01)
        holder.execute("ROLLBACK")

    thread = threading.Thread(target=release)
    thread.start()
    assert open_it(said.append).study.study_name == "s"
    thread.join()
    holder.close()
    assert len(said) == 1 and "is locked; waiting for it" in said[0]


def test_a_notebooks_setting_does_not_spoil_the_end(tuner: Any, study: Study) -> None:
    """MPLBACKEND may name what is not installed here; the picture does not need it."""
    tuner.environ["MPLBACKEND"] = "module://nowhere.backend"
    code, out, said = tuner("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM, "--json", "-")
    assert code == 0, said
    assert Path(json.loads(out)["picture"]).stat().st_size > 0


def test_a_picture_that_cannot_be_drawn_spoils_nothing(tuner: Any, study: Study, tmp_path: Path) -> None:
    """As where there is no memory left for matplotlib's libraries."""
    (tmp_path / "libraries" / "matplotlib").mkdir(parents=True)
    (tmp_path / "libraries" / "matplotlib" / "__init__.py").write_text("raise ImportError('no memory')")
    tuner.environ["PYTHONPATH"] = str(tmp_path / "libraries")
    code, out, said = tuner("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM, "--json", "-")
    assert code == 0 and json.loads(out)["picture"] is None, said
    assert "run.png: no memory; there is no picture" in said


def test_a_target_that_was_reached_needs_no_further_trial(tuner: Any, study: Study) -> None:
    words = ("run", study(PLAIN.format(before="pass")), "--trials", "9", *RANDOM, "--target", "2", "--json", "-")
    tuner(*words)
    count = len(tuner.trials())
    code, out, said = tuner(*words)
    assert (code, json.loads(out)["ended"]) == (0, "target") and len(tuner.trials()) == count
    assert "has reached the target" in said


@pytest.mark.parametrize("name", ["plain", "my-study", "01_first"])
def test_the_command_that_repeats_a_trial(name: str, tmp_path: Path) -> None:
    """Whatever the file is called."""
    (tmp_path / f"{name}.py").write_text(PLAIN.format(before="pass"))
    options = session.Options(f"{tmp_path}/{name}.py:objective", storage="", study="")
    command = session.repeat_command(options, session.Result(0, 0.25, {"x": 0.25}, True))
    command = command.replace("python -c", f"{sys.executable} -c", 1)
    assert float(subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout) == 0.25


def test_a_storage_that_needs_what_is_not_there(tuner: Any, study: Study) -> None:
    words = study(PLAIN.format(before="pass"))
    for command in (("run", words, "--trials", "1", *RANDOM), ("status",)):
        code, _, said = tuner(*command, "--storage", "redis://localhost")
        assert code == 1 and said.startswith("hadar: redis://localhost: ") and "Traceback" not in said


def test_a_grid_is_tried_once(tuner: Any, study: Study) -> None:
    """By several at a time, and when it is asked for more, and again."""
    text = (
        "def objective(trial):\n    return trial.suggest_int('x', 1, 2) + trial.suggest_categorical('y', [0.5, 0.25])\n"
    )
    for _ in range(2):
        code, out, said = tuner("run", study(text), "--trials", "9", "--algorithm", "grid", "--gpus", "3")
        assert code == 0, said
        assert "trials: 4 complete" in out
    assert sorted(t.value for t in tuner.trials()) == [1.25, 1.5, 2.25, 2.5]


def test_brackets_do_not_become_smaller(tuner: Any, study: Study) -> None:
    words = ("run", study(steps=1, pace=0), "--algorithm", "sha", "--gpus", "2")
    assert tuner(*words, "--trials", "3")[0] == 0
    code, _, said = tuner(*words, "--trials", "2")
    assert code == 1 and "begun with 3 trials" in said and "give --trials 3 or more" in said


def test_what_an_algorithm_of_ones_own_raises_is_one_line(tuner: Any, study: Study) -> None:
    text = PLAIN.format(before="pass") + "\ndef search(executor):\n    raise ValueError('no luck\\nat all')\n"
    code, _, said = tuner("run", study(text), "--algorithm", "study.py:search", "--gpus", "1")
    assert code == 1 and said.strip() == f"hadar: {tuner.folder}/study.py, line 6: ValueError: no luck"


@pytest.mark.parametrize("ending", ["pass", "raise KeyError('x')"])
def test_what_an_algorithm_of_ones_own_leaves_is_not_left_running(ending: str, tuner: Any, study: Study) -> None:
    """Trials that it has asked for and never submitted, or submitted to a group in which it then raised; the next
    search takes them up, and leaves them as it found them."""
    text = PLAIN.format(before="pass") + (
        "\ndef search(tuner):\n    numbers = [tuner.book.ask() for _ in range(3)]\n    with tuner.group() as group:\n"
        f"        group.submit(numbers[0])\n        {ending}\n"
    )
    words = ("run", study(text), "--algorithm", "study.py:search", "--gpus", "1")
    code, _, said = tuner(*words)
    states = [t.state.name for t in tuner.trials()]
    if ending == "pass":
        assert code == 0 and states == ["COMPLETE", "WAITING", "WAITING"], said
    else:
        assert code == 1 and "KeyError: 'x'" in said and states == ["WAITING"] * 3
        tuner(*words)
        assert [t.state.name for t in tuner.trials()] == ["WAITING"] * 6


def test_what_a_file_defines(tmp_path: Path) -> None:
    """In whatever encoding, and wherever it runs when the file does."""
    file = tmp_path / "study.py"
    file.write_bytes("# -*- coding: latin-1 -*-\nif 1:\n    def objective(trial): return 'ä'\n".encode("latin-1"))
    assert session.function_at(f"{file}:objective") == f"{file}:objective"
    file.write_bytes(b"\xef\xbb\xbftry:\n    from a import objective\nexcept ImportError:\n    other: int = 1\n")
    assert session.function_at(f"{file}:objective") == f"{file}:objective"
    with pytest.raises(ConfigError, match="it defines objective, other"):
        session.function_at(f"{file}:neither")
    file.write_text("async def objective(trial):\n    def inner(): pass\n    return 1\n")
    with pytest.raises(ConfigError, match="a coroutine"):
        session.function_at(f"{file}:objective")
    with pytest.raises(ConfigError, match=r"it defines objective$"):
        session.function_at(f"{file}:inner")


def test_options_of_a_database_are_no_part_of_its_name(tuner: Any, study: Study) -> None:
    storage = ("--storage", "sqlite:///tune.db?timeout=60")
    code, _, said = tuner("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM, *storage)
    assert code == 0, said
    code, out, _ = tuner("status", *storage)
    assert code == 0 and "1 complete" in out and "?timeout=60" in out
    assert (tuner.folder / "tune.db").exists()


@pytest.mark.parametrize("closed", [os.O_RDWR, os.O_RDONLY])
def test_a_study_is_looked_at_by_who_may_not_write_to_it(
    tuner: Any, study: Study, monkeypatch: pytest.MonkeyPatch, closed: int
) -> None:
    """Its lock may be one that can be read only, or, another user's, not at all. Root may do both."""
    assert tuner("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM)[0] == 0
    opened = os.open

    def refused(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if Path(path).name == "lock" and flags & os.O_ACCMODE in (closed, os.O_RDWR):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refused)
    storage = ("--storage", f"sqlite:///{tuner.folder}/tune.db")
    status = CliRunner().invoke(tune, ["status", *storage])
    stop = CliRunner().invoke(tune, ["stop", *storage])

    assert status.exit_code == 0 and "1 complete" in status.output and "best: trial 0" in status.output
    assert ("is another user's" in status.output) is (closed == os.O_RDONLY)
    assert isinstance(stop.exception, ConfigError)
    assert ("is another user's" if closed == os.O_RDONLY else "no tuner is at work") in str(stop.exception)


def test_nobody_goes_on_from_a_trial_that_has_ended() -> None:
    """There is nothing left to train."""
    dice = SimpleNamespace(choice=lambda found: found[0])
    trials = [member(i, {5: float(i)}) for i in range(8)]
    for ended, better in ((0, 1), (1, 0)):
        trials[0].state = trials[1].state = optuna.trial.TrialState.RUNNING
        trials[ended].state = optuna.trial.TrialState.COMPLETE
        found = population.model_for(trials[7], trials, False, 1, dice)
        assert found is not None and found.number == better
    trials[0].state = optuna.trial.TrialState.COMPLETE
    trials[1].state = optuna.trial.TrialState.COMPLETE
    assert population.model_for(trials[7], trials, False, 1, dice) is None


def test_no_value_is_no_success(tuner: Any, study: Study) -> None:
    text = "def objective(trial):\n    raise RuntimeError('boom')\n"
    code, out, said = tuner("run", study(text), "--trials", "2", *RANDOM, "--json", "-")
    assert (code, json.loads(out)["best"]) == (1, None) and "no trial has a value" in said


def test_how_it_stands_counts_what_was_before(tuner: Any, study: Study) -> None:
    words = study(steps=1, pace=0)
    assert tuner("run", words, "--trials", "3", *RANDOM)[0] == 0
    best = min(t.value for t in tuner.trials())
    (tuner.folder / "hold").touch()
    tuner.start("resume", "--trials", "5", "--gpus", "1")

    def stands() -> Any:
        return json.loads(tuner("status", "--json", "-")[1])["tuner"]

    live = tuner.until(lambda: (found := stands()) and found["counts"]["runs"] and found)
    assert (live["trials"], live["counts"]["ended"]) == (5, 3)
    assert live["best"]["value"] <= best
    (tuner.folder / "hold").unlink()


def test_a_study_of_optunas_own_is_refused_with_a_way_out(tuner: Any, study: Study) -> None:
    """Which is tried here: trials of one's own go into a study of ours."""
    storage = f"sqlite:///{tuner.folder}/tune.db"
    optuna.create_study(study_name="theirs", storage=storage).enqueue_trial({"x": 0.5})
    words = ("run", study(PLAIN, before="pass"), "--trials", "1", *RANDOM, "--study")
    for refused in ((*words, "theirs"), ("resume", "--study", "theirs"), ("status", "--study", "theirs")):
        code, _, said = tuner(*refused)
        assert code == 1 and "take another --study; trials of your own go into one that was (Optuna's enqueue" in said

    assert tuner(*words, "ours")[0] == 0
    optuna.load_study(study_name="ours", storage=storage).enqueue_trial({"x": 0.25})
    code, _, said = tuner("resume", "--study", "ours", "--trials", "2", *RANDOM[2:])

    trials = optuna.load_study(study_name="ours", storage=storage).trials
    assert code == 0 and [t.state.name for t in trials] == ["COMPLETE"] * 2, said
    assert trials[1].params == {"x": 0.25}


def test_a_grid_of_floats_without_a_step_is_said_once(tuner: Any, study: Study) -> None:
    """Each further trial would fail alike; with a step the search goes on with the one that has asked."""
    words = ("run", study(PLAIN, before="pass"), "--trials", "4", "--algorithm", "grid", "--gpus", "2")
    code, _, said = tuner(*words)
    assert code == 1 and said.startswith("hadar: --algorithm grid: parameter 'x' is any float from 0 to 1: give "), said
    assert len(said.splitlines()) == 1 and [t.state.name for t in tuner.trials()] == ["WAITING"]

    study(PLAIN.replace("0, 1)", "0, 1, step=0.5)"), before="pass")
    assert tuner(*words)[0] == 0
    assert sorted(t.value for t in tuner.trials()) == [0, 0.5, 1]


def test_a_search_space_that_has_changed_loses_no_trial(tuner: Any, study: Study) -> None:
    """Trials that are to go on wait on until their own space is back."""
    (tuner.folder / "hold").touch()
    running = tuner.start("run", study(steps=3, pace=0.02), "--trials", "3", *RANDOM)
    tuner.until(lambda: len({event["trial"] for event in tuner.events("value")}) == 2)
    tuner("stop")
    running.wait(60)
    waiting = [trial.number for trial in tuner.trials() if trial.state.name == "WAITING"]
    study(LOOP.replace('"x", 0.0, 1.0', '"x", 0.1, 1.0, log=True'), steps=3, pace=0.02)

    code, _, said = tuner("resume", *RANDOM[2:])

    assert code == 1 and len(waiting) == 2
    assert len(re.findall("now asks for another 'x' .*: restore the search space of .*study.py", said)) == 1, said
    assert [trial.number for trial in tuner.trials() if trial.state.name == "WAITING"] == waiting
    study(steps=3, pace=0.02)
    (tuner.folder / "hold").unlink()
    assert tuner("resume", *RANDOM[2:])[0] == 0
    assert [trial.state.name for trial in tuner.trials()] == ["COMPLETE"] * 3
    for number in waiting:
        (file,) = tuner.folder.glob(f"*.hadar/*/trials/{number}/steps")
        steps = [int(line) for line in file.read_text().split()]
        assert steps == list(range(1, len(steps) + 1))


def test_a_search_that_is_interrupted_is_no_success(tuner: Any, study: Study) -> None:
    """``hadar tune run && next`` is not to go on; one that was asked to stop has done what it was told."""
    (tuner.folder / "hold").touch()
    running = tuner.start("run", study(steps=3, pace=0.02), "--trials", "2", *RANDOM)
    tuner.until(lambda: tuner.events("value"))
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)

    assert running.returncode == 130 and "stopped; go on with" in said
    (hint,) = re.findall(r"go on with: hadar tune resume (.*)", tuner("status")[1])
    assert hint.endswith(" --gpus 2")  # where the machine has none, resume asks for it


@pytest.mark.parametrize(
    ("options", "told"),
    [(["--metric", "loss"], r"returned no 'loss' \(--metric\), but \{'lose': 0.5\}"),
     ([], r"which is no finite number \(of several values, --metric says which\)")],
)  # fmt: skip
def test_a_metric_that_is_not_there_is_named(tuner: Any, study: Study, options: list[str], told: str) -> None:
    objective = study("def objective(trial):\n    return {'lose': 0.5}\n")

    code, _, said = tuner("run", objective, "--trials", "1", *RANDOM, *options)

    assert code == 1 and re.search(told, said), said


@pytest.mark.parametrize("storage", ["journal.log", "./tune.db", "sqlite:tune.db"])
def test_a_storage_that_is_no_url(tuner: Any, study: Study, storage: str) -> None:
    code, _, said = tuner("run", study(steps=1, pace=0), "--storage", storage)
    assert code == 1 and "must be a URL of SQLAlchemy's, such as sqlite:///tune.db" in said
    assert len(said.splitlines()) == 1


def test_a_study_in_a_package_may_import_from_it(tuner: Any, study: Study) -> None:
    package = tuner.folder / "models"
    package.mkdir()
    (package / "net.py").write_text("WIDTH = 3\n")
    told = study("from .net import WIDTH\n" + PLAIN.format(before="assert WIDTH == 3"))
    (tuner.folder / "study.py").rename(package / "study.py")
    words = ("run", f"models/{told}", "--trials", "1", *RANDOM, "--json", "-")

    code, _, said = tuner(*words)
    assert code == 1 and "study.py, line 1: 'from .net import' leads out of its package" in said
    assert not tuner.events("start")

    (package / "__init__.py").touch()
    code, out, said = tuner(*words)
    assert code == 0, said
    command = json.loads(out)["repeat"].replace("python -c", f"{sys.executable} -c", 1)
    assert subprocess.run(command, shell=True, check=False).returncode == 0


def test_files_beside_the_study_do_not_replace_pythons_own(tuner: Any, study: Study) -> None:
    """Nor are they out of its reach."""
    tuner.flags = ["-P"]  # as the command hadar, which looks for modules beside itself
    (tuner.folder / "json.py").write_text("")
    (tuner.folder / "helper.py").write_text("")
    told = study("import helper\n" + PLAIN.format(before="pass"))
    code, _, said = tuner("run", told, "--trials", "1", *RANDOM)
    assert code == 0, said


def test_who_ends_without_a_word_is_told_by_its_last_line(tuner: Any, study: Study) -> None:
    told = study(PLAIN.format(before="import os; os.write(2, b'out of\\n\\x1b[1mpatience\\n\\n'); os._exit(3)"))
    _, _, said = tuner("run", told, "--trials", "1", *RANDOM)
    assert "its process ended by exit code 3, 3 times without progress; its output ends with: [1mpatience" in said


def test_the_end_of_the_process_that_forks_trials_is_told_as_it_was(tmp_path: Path) -> None:
    """Nobody has sent a signal to a trial that was never started."""
    launcher = LocalLauncher(set(), 1)
    spec = Spec("", "", "", 0, 0, "study.py", "objective", str(tmp_path), (0,), "cpu")
    try:
        zygote = launcher._living()  # noqa: SLF001
        os.kill(zygote.pid, signal.SIGSTOP)  # it cannot answer before its end
        launcher.start((0, 0), Site("here", "cpu", (0,)), [spec], tmp_path / "log")
        os.kill(zygote.pid, signal.SIGKILL)
        os.waitid(os.P_PID, zygote.pid, os.WEXITED | os.WNOWAIT)
        assert launcher.ended() == [Ended((0, 0), -signal.SIGKILL, "the process that forks trials")]
    finally:
        launcher.close()


def test_who_forks_trials_ends_quietly_when_the_tuner_was_killed(tmp_path: Path) -> None:
    """It may just have been told to fork one, and nobody reads which process that is, nor how it ended."""
    command = [sys.executable, "-m", "slurm_hadar.tuning.trial.zygote"]
    request = json.dumps({"spec": "", "environ": {}, "log": str(tmp_path / "log")})
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as zygote:
        assert zygote.stdout is not None
        zygote.stdout.close()
        zygote.stdout = None
        _, said = zygote.communicate(request + "\n", timeout=60)
    assert (zygote.returncode, said) == (0, "")
