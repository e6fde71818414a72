"""Spool files: what stands in them, and what users may put in their place."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from slurm_hadar.controller.agents import file_reader
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.agents.spools import SpoolReader
from slurm_hadar.controller.agents.user_files import Tail, UserFiles
from slurm_hadar.messages import Report, encode, token_fingerprint
from tests.profiles import examples

TOKEN = "ab" * 32
ME = str(os.getuid())
# answers for all folders but those named "hangs", which hold it up for ever
STALLS = """
import sys, time, json
sys.path.insert(0, {folder!r})
import file_reader
answer = file_reader.answer
def stalls(request):
    if "hangs" in request.get("tail", request.get("whole"))[0]:
        time.sleep(3600)
    return answer(request)
file_reader.answer = stalls
file_reader.main()
"""


def made(seq: int, **fields: Any) -> bytes:
    """A line of job 7."""
    base = {"kind": "report", "job": "7", "restart": 0, "seq": seq, "token": TOKEN, "time": 1.0, "node": "n1"}
    return encode(Report(**{**base, **fields})) + b"\n"


@pytest.fixture
def book() -> ReportBook:
    """A book that knows job 7."""
    one = ReportBook()
    one.expect({"7": token_fingerprint(TOKEN)})
    return one


@pytest.fixture
def files() -> Iterator[UserFiles]:
    """A reader that is soon out of patience."""
    one = UserFiles(0.5)
    yield one
    one.close()


@pytest.fixture
def reader(book: ReportBook, files: UserFiles) -> SpoolReader:
    return SpoolReader(book, files)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where the spool file of job 7 belongs."""
    folder = tmp_path / ".hadar" / "7"
    folder.mkdir(parents=True)
    return folder / "spool.jsonl"


@pytest.fixture
def stalling(tmp_path: Path) -> Iterator[UserFiles]:
    """A reader whose process hangs in directories whose name has "hangs" in it."""
    script = tmp_path / "stalls.py"
    script.write_text(STALLS.format(folder=str(Path(file_reader.__file__).parent)))
    one = UserFiles(0.3, script)
    yield one
    one.close()


def test_lines_are_read_once_and_only_whole(spool: Path, tmp_path: Path, book: ReportBook, reader: SpoolReader) -> None:
    """Lines half written, foreign or broken are skipped; new ones are read from where the last read ended."""
    spool.write_bytes(made(1, steps=1) + b"{broken\n" + made(2, job="8") + made(3)[:20])

    assert reader.read("7", str(tmp_path), ME) == 1
    spool.write_bytes(spool.read_bytes()[:-20] + made(3, steps=30))
    assert reader.read("7", str(tmp_path), ME) == 1
    assert reader.read("7", str(tmp_path), ME) == 0
    assert book.get("7").report.steps == 30 and not book.get("7").live and book.dropped == 2


def test_what_has_stood_there_for_long_was_said_long_ago(
    spool: Path, tmp_path: Path, book: ReportBook, reader: SpoolReader
) -> None:
    """A save of an hour ago is no answer to a wish of half an hour ago, whoever reads of it only now; what comes since
    is one whatever the node's clock shows. None is of a time to come."""
    now = time.time()
    spool.write_bytes(made(1, kind="saved", time=now - 3600.0, saved_step=5))
    reader.read("7", str(tmp_path), ME)
    assert book.saved_since("7", 0, now - 3700.0) and not book.saved_since("7", 0, now - 1800.0)

    spool.write_bytes(spool.read_bytes() + made(2, kind="saved", time=now - 20.0, saved_step=6))
    reader.read("7", str(tmp_path), ME)
    assert book.saved_since("7", 0, now)

    spool.write_bytes(made(3, time=now + 3600.0))
    SpoolReader(book).read("7", str(tmp_path), ME)
    assert book.get("7").heard <= time.time()


def test_of_a_huge_file_the_end_is_read(spool: Path, tmp_path: Path, book: ReportBook, reader: SpoolReader) -> None:
    """The last report says all that is known; neither its size nor a million empty lines hold up a round."""
    with spool.open("wb") as stream:
        stream.truncate(1 << 40)
        stream.seek(1 << 40)
        stream.write(b"\n" * 200_000 + made(5, steps=50))
    began = time.monotonic()

    assert reader.read("7", str(tmp_path), ME) == 1
    assert book.get("7").report.steps == 50 and time.monotonic() - began < 1.0
    with spool.open("ab") as stream:
        stream.write(made(6, steps=60))
    assert reader.read("7", str(tmp_path), ME) == 1


def test_a_file_that_is_another_now_is_read_from_its_beginning(
    spool: Path, tmp_path: Path, book: ReportBook, reader: SpoolReader
) -> None:
    """A shorter one replaced it."""
    spool.write_bytes(made(1) + made(2) + made(3))
    reader.read("7", str(tmp_path), ME)
    spool.write_bytes(made(4, steps=4))

    assert reader.read("7", str(tmp_path), ME) == 1 and book.get("7").report.steps == 4


def _directory(spool: Path) -> None:
    spool.mkdir()


def _fifo(spool: Path) -> None:
    os.mkfifo(spool)


def _link(spool: Path) -> None:
    secret = spool.parents[2] / "secret"
    secret.write_bytes(made(1))
    spool.symlink_to(secret)


def _device(spool: Path) -> None:
    spool.symlink_to("/dev/zero")


def _linked_folder(spool: Path) -> None:
    elsewhere = spool.parents[2] / "elsewhere"
    spool.parent.rename(elsewhere)
    (elsewhere / spool.name).write_bytes(made(1))
    spool.parent.symlink_to(elsewhere)


def _linked_top(spool: Path) -> None:
    spool.write_bytes(made(1))
    elsewhere = spool.parents[2] / "elsewhere"
    spool.parents[1].rename(elsewhere)
    spool.parents[1].symlink_to(elsewhere)


def _foreign(spool: Path) -> None:
    spool.write_bytes(made(1))
    if os.getuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(spool, 12345, 12345)


@pytest.mark.parametrize(
    "place", [_directory, _fifo, _link, _device, _linked_folder, _linked_top, _foreign], ids=lambda f: f.__name__
)
def test_what_is_no_spool_file_is_not_read(
    place: Callable[[Path], None], spool: Path, tmp_path: Path, book: ReportBook, reader: SpoolReader, caplog: Any
) -> None:
    """It costs the job its reports, with a reason; a controller with more rights than the user is not led elsewhere."""
    place(spool)

    assert reader.read("7", str(tmp_path), ME) == 0
    assert book.get("7") is None and book.turned_away["spool"] == 1
    assert "spool file of job 7" in caplog.text


def test_what_is_not_there_is_no_fault(tmp_path: Path, book: ReportBook, reader: SpoolReader, caplog: Any) -> None:
    """Most jobs leave no spool file."""
    assert reader.read("7", str(tmp_path), ME) == reader.read("7", "", ME) == 0
    assert reader.read("7", str(tmp_path / "none"), ME) == 0
    assert not book.turned_away.total() and not caplog.text


@pytest.mark.parametrize("work_dir", ["\0", "a\nb", "/" + "x" * 5000, "/\udcff", "relative"])
def test_no_name_of_a_directory_does_harm(work_dir: str, reader: SpoolReader, tmp_path: Path, spool: Path) -> None:
    """And the next one is read."""
    spool.write_bytes(made(1))

    assert reader.read_all([("8", work_dir, ME), ("7", str(tmp_path), ME), ("9", work_dir, "nobody at all")]) == 1


_CONTENT = st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", made(1), made(2)[:30], made(3, steps=1)]))


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=_CONTENT.map(b"".join), after=_CONTENT.map(b"".join))
def test_any_content_is_read_or_dropped(
    before: bytes, after: bytes, spool: Path, tmp_path: Path, files: UserFiles
) -> None:
    """Whatever stands there and whatever replaces it."""
    book = ReportBook()
    reader = SpoolReader(book, files)
    for content in (before, after):
        spool.write_bytes(content)
        reader.read("7", str(tmp_path), ME)


def test_a_dead_directory_costs_its_job_only(stalling: UserFiles, book: ReportBook, tmp_path: Path) -> None:
    """Others are read in the same go by another process; the dead one is not tried again for growing times."""
    folders = {}
    for name in ("hangs", "good", "better"):
        folders[name] = tmp_path / name / ".hadar" / "7"
        folders[name].mkdir(parents=True)
        (folders[name] / "spool.jsonl").write_bytes(made(len(folders), steps=len(folders)))
    reader = SpoolReader(book, stalling)
    jobs = [("7", str(tmp_path / name), ME) for name in ("hangs", "good", "better")]
    began = time.monotonic()

    assert reader.read_all(jobs) == 2
    assert time.monotonic() - began < 3.0 and stalling.misses == book.turned_away["directory"] == 1

    began = time.monotonic()
    reader.read_all(jobs)
    assert time.monotonic() - began < 0.2 and stalling.misses == 1


@pytest.mark.usefixtures("stalling")
def test_the_time_a_dead_directory_is_left_alone_grows(monkeypatch: Any) -> None:
    """By doubling; when it answers again all is forgotten."""
    from slurm_hadar.controller.agents import user_files

    clock, waits = [0.0], []
    monkeypatch.setattr(user_files, "_MISSES_IN_S", 0.0)
    dead = user_files._DeadFolders()  # noqa: SLF001 its process dies unseen
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for _ in range(8):
        dead.missed("/dead", "ann")
        began = clock[0]
        while dead.fault("/dead", "ann"):
            clock[0] += 10.0
        waits.append(clock[0] - began)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600]

    dead.answered("/dead")
    dead.missed("/dead", "ann")
    clock[0] += 60.0
    assert not dead.fault("/dead", "ann")


def test_a_user_with_many_dead_directories_is_left_alone(stalling: UserFiles, tmp_path: Path) -> None:
    """A thousand of them cost no more than three; another user is served."""
    (tmp_path / "good").write_text("hello")
    began = time.monotonic()
    found = stalling.tails([Tail(f"/hangs/{n}", ("x",), "12345", 0, 10) for n in range(1000)])

    assert time.monotonic() - began < 5.0 and stalling.misses == 3
    assert all("answer" in one.fault for one in found)
    assert stalling.tails([Tail(f"/hangs/{n}", ("x",), "12345", 0, 10) for n in range(1000, 2000)]) and (
        stalling.misses == 3
    )


def test_a_job_beside_another_users_directory(book: ReportBook, files: UserFiles, tmp_path: Path) -> None:
    """Two users share a directory of submission: the second one's jobs are under a name of their owner's own."""
    own = tmp_path / f".hadar-{ME}" / "7"
    own.mkdir(parents=True, mode=0o700)
    (own / "spool.jsonl").write_bytes(made(1, steps=5))
    (tmp_path / ".hadar").symlink_to("/etc")
    reader = SpoolReader(book, files)

    assert reader.read("7", str(tmp_path), ME) == 1 and reader.read("7", str(tmp_path), ME) == 0
    news = book.get("7")
    assert news is not None and news.report.steps == 5 and book.turned_away["spool"] == 0


def test_a_stopped_process_is_replaced(files: UserFiles, tmp_path: Path) -> None:
    """As one that hangs: it is given up, not waited for."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("other")
    assert files.whole(tmp_path / "file", ME, 9).data == b"text"
    first = files._process  # noqa: SLF001 its process dies unseen
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)

    assert "does not answer" in files.whole(tmp_path / "file", ME, 9).fault
    assert files.whole(tmp_path / "other" / "file", ME, 9).data == b"other"
    assert files._process is not None and files._process.pid != first.pid  # noqa: SLF001 its process dies unseen


def test_a_process_that_was_killed_is_replaced_at_once(files: UserFiles, tmp_path: Path) -> None:
    """It is nobody's fault."""
    (tmp_path / "file").write_text("text")
    files.whole(tmp_path / "file", ME, 9)
    assert files._process is not None  # noqa: SLF001 its process dies unseen
    files._process.kill()  # noqa: SLF001 its process dies unseen
    files._process.wait()  # noqa: SLF001 its process dies unseen

    assert files.whole(tmp_path / "file", ME, 9).data == b"text" and files.misses == 0


def test_processes_that_hang_do_not_pile_up(stalling: UserFiles, monkeypatch: Any) -> None:
    """Those that cannot be killed are counted, and no more are sent after a few."""
    from slurm_hadar.controller.agents import user_files

    monkeypatch.setattr(user_files, "_MISSES", 100)
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    found = [stalling.whole(Path(f"/hangs{n}/x"), f"{n}", 9) for n in range(12)]
    monkeypatch.setattr(subprocess.Popen, "kill", kill)

    assert len(stalling._given_up) == 8 and "hang on dead mounts" in found[-1].fault  # noqa: SLF001 its process dies unseen
    for process in stalling._given_up:  # noqa: SLF001 its process dies unseen
        process.kill()
        process.wait()


def test_it_ends_with_the_reader(tmp_path: Path) -> None:
    """No process is left behind."""
    files = UserFiles()
    files.whole(tmp_path / "file", ME, 9)
    process = files._process  # noqa: SLF001 its process dies unseen
    assert process is not None
    del files

    assert process.poll() is not None
