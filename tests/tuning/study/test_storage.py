"""Studies and storages that are not as they ought to be, and the folder of checkpoints beside each."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

optuna = pytest.importorskip("optuna")

from slurm_hadar.cli.systems.tune import tune  # noqa: E402
from slurm_hadar.errors import ConfigError  # noqa: E402
from slurm_hadar.tuning import session  # noqa: E402
from slurm_hadar.tuning.study.book import Book  # noqa: E402
from slurm_hadar.tuning.study.record import Record, folder_of  # noqa: E402
from tests.tuning.conftest import PLAIN, RANDOM  # noqa: E402

Study = Callable[..., str]
SAME_NAME = "study-objective"


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


@pytest.mark.thorough
def test_a_search_after_the_study_was_deleted_is_refused(tuner: Any, study: Study) -> None:
    """Its trials would go on from the checkpoints of the old one's."""
    words = ("run", study(steps=2, pace=0), "--trials", "1", *RANDOM)
    assert tuner(*words)[0] == 0
    (tuner.folder / "tune.db").unlink()
    code, _, said = tuner(*words)
    assert code == 1 and "another study of that name (or of one like it): move or remove it" in said


def test_a_search_whose_study_is_deleted_meanwhile_ends_in_one_line(tuner: Any, study: Study) -> None:
    (tuner.folder / "hold").touch()
    running = tuner.start("run", study(steps=3, pace=0.02), "--trials", "2", *RANDOM)
    tuner.until(lambda: tuner.events("value"))
    optuna.delete_study(study_name="study-objective", storage=f"sqlite:///{tuner.folder}/tune.db")
    _, said = running.communicate(timeout=300)
    assert running.returncode == 1 and "Traceback" not in said, said
    assert "does not have the study any more: it was deleted" in said.splitlines()[-1]


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


@pytest.mark.parametrize("storage", ["journal.log", "./tune.db", "sqlite:tune.db"])
def test_a_storage_that_is_no_url(tuner: Any, study: Study, storage: str) -> None:
    code, _, said = tuner("run", study(steps=1, pace=0), "--storage", storage)
    assert code == 1 and "must be a URL of SQLAlchemy's, such as sqlite:///tune.db" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_study_in_memory_is_refused(tuner: Any, study: Study, url: str) -> None:
    """Its result would be gone with the tuner, and ``resume`` could not find it."""
    code, _, said = tuner("run", study(PLAIN, before="pass"), "--trials", "1", *RANDOM, "--storage", url)
    assert code == 1 and "in memory, where a study ends with its tuner: name a file" in said
    assert [file.name for file in tuner.folder.iterdir()] == ["study.py"]


@pytest.mark.parametrize(
    ("folder", "storage"),
    [
        pytest.param("20%20", "sqlite:///tune.db", marks=pytest.mark.thorough),
        pytest.param("what?", "sqlite:///tune.db", marks=pytest.mark.thorough),
        ("a b", "sqlite+pysqlite:///tune.db"),
    ],
)
def test_a_storage_is_found_again_whatever_its_folder_is_called(
    tuner: Any, study: Study, folder: str, storage: str
) -> None:
    file = Path(study(PLAIN, before="pass").partition(":")[0]).name
    words = (f"{tuner.folder / file}:objective", "--trials", "1", *RANDOM, "--storage", storage)
    tuner.folder = tuner.folder / folder
    tuner.folder.mkdir()
    code, _, said = tuner("run", *words)
    assert code == 0, said

    code, out, said = tuner("status", "--storage", storage)

    assert code == 0 and "1 complete" in out, said
    assert sorted(found.name for found in tuner.folder.iterdir()) == ["tune.db", "tune.db.hadar"]
    (hint,) = re.findall(r"hadar tune (resume --storage .*)", out)
    tuner.folder = tuner.folder.parent
    assert tuner(*shlex.split(hint))[0] == 0


def test_a_database_is_one_whatever_links_lead_to_it(tmp_path: Path) -> None:
    """Else two tuners would run its trials, each without the other's checkpoints."""
    (tmp_path / "link.db").symlink_to("tune.db")
    for there in (False, True):
        assert folder_of(f"sqlite:///{tmp_path}/link.db", "s") == tmp_path.resolve() / "tune.db.hadar" / "s", there
        (tmp_path / "tune.db").touch()


def test_a_study_on_a_server_goes_on_where_its_checkpoints_are(tmp_path: Path) -> None:
    """Elsewhere its trials would begin anew, or a second tuner run them beside the first."""
    sampler, pruner = optuna.samplers.RandomSampler(), optuna.pruners.NopPruner()
    book = Book.open(f"sqlite:///{tmp_path}/server.db", "s", "minimize", sampler, pruner, print)
    here, elsewhere = (tmp_path / name / "hadar-tune" / "s" for name in ("here", "elsewhere"))
    url, first = "postgresql://server/studies", Record(here, print)
    book.settle(here, url)
    book.settle(here, url)
    refused = pytest.raises(ConfigError, match=f"run this where it was begun, in {tmp_path}/here, or move all")
    with refused:
        book.settle(elsewhere, url)
    first.close()
    first.trial_folder(0).mkdir(parents=True)
    with refused:
        book.settle(elsewhere, url)
    (here / "trials").rename(tmp_path / "moved")
    book.settle(elsewhere, url)


def test_a_storage_without_a_study(tmp_path: Path) -> None:
    """Whose tuner was killed before it had made one."""
    url = f"sqlite:///{tmp_path}/tune.db"
    optuna.storages.RDBStorage(url)

    for study in (None, "s"):
        with pytest.raises(ConfigError, match="no study yet; begin one with hadar tune run"):
            session.options_of(url, study)


def test_a_storage_that_needs_what_is_not_there(tuner: Any, study: Study) -> None:
    words = study(PLAIN.format(before="pass"))
    for command in (("run", words, "--trials", "1", *RANDOM), ("status",)):
        code, _, said = tuner(*command, "--storage", "redis://localhost")
        assert code == 1 and said.startswith("hadar: redis://localhost: ") and "Traceback" not in said


@pytest.mark.thorough
def test_options_of_a_database_are_no_part_of_its_name(tuner: Any, study: Study) -> None:
    storage = ("--storage", "sqlite:///tune.db?timeout=60")
    code, _, said = tuner("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM, *storage)
    assert code == 0, said
    code, out, _ = tuner("status", *storage)
    assert code == 0 and "1 complete" in out and "?timeout=60" in out
    assert (tuner.folder / "tune.db").exists()


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


@pytest.mark.parametrize("directions", [["minimize"], ["minimize", "maximize"]])
def test_a_study_that_is_there_with_another_aim(directions: list[str], tuner: Any, study: Study) -> None:
    storage = optuna.storages.RDBStorage(f"sqlite:///{tuner.folder}/tune.db")
    optuna.create_study(storage=storage, study_name=SAME_NAME, directions=directions)
    storage.engine.dispose()
    words = ("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM, "--direction", "maximize")
    code, _, said = tuner(*words)
    assert code == 1 and "Traceback" not in said
    assert ("is there already, and is not to maximize" if len(directions) == 1 else "has 2 objectives") in said


@pytest.mark.thorough
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


@pytest.mark.parametrize("closed", [os.O_RDWR, os.O_RDONLY])
@pytest.mark.thorough
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
