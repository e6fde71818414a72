"""Reports: who is believed, and what is kept."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import Report, token_fingerprint

TOKEN = "ab" * 32


def made(seq: int = 1, **fields: Any) -> Report:
    """A report of job 7."""
    base = {"kind": "report", "job": "7", "restart": 0, "seq": seq, "token": TOKEN, "time": 1.0, "node": "n1"}
    return Report(**{**base, **fields})


def trusting() -> ReportBook:
    """A book that knows job 7, whose comment names :data:`TOKEN`."""
    book = ReportBook()
    book.expect({"7": token_fingerprint(TOKEN)})
    return book


def test_the_token_must_match_the_comment() -> None:
    """The fingerprint in the job's comment decides who speaks for the job."""
    book = ReportBook()
    book.expect({"7": token_fingerprint("cd" * 32)})

    with pytest.raises(ChannelError, match="wrong token"):
        book.ingest(made())

    assert book.get("7") is None and book.refused == 1


def test_nobody_is_believed_before_the_comment_vouches_for_them() -> None:
    """Anybody can report for a job that does not report by itself: it cannot be made to look as if it could save."""
    book = ReportBook()
    told: list[Report] = []
    book.listener = told.append
    book.expect({"7": None})
    book.ingest(made(1, resumable=True, steps=10**9))

    assert book.get("7") is None and not book.saved_since("7", 0, 0.0) and not told

    book.expect({"7": token_fingerprint(TOKEN)})
    assert book.get("7").report.steps == 10**9, "hadar-srun has named this very token meanwhile"


@pytest.mark.parametrize("known", [True, False])
def test_a_stranger_who_speaks_first_keeps_nobody_out(known: bool) -> None:
    """Both are kept until the comment vouches for one; whether or not a round has seen the job."""
    book = ReportBook()
    book.expect({"7": None} if known else {})
    book.ingest(made(2**60, token="cd" * 32, steps=10**9))
    book.ingest(made(1, steps=5))

    book.expect({"7": token_fingerprint(TOKEN)})
    assert book.get("7").report.steps == 5
    with pytest.raises(ChannelError, match="wrong token"):
        book.ingest(made(2**61, token="cd" * 32))
    book.ingest(made(2, steps=6))

    assert book.get("7").report.steps == 6


def test_no_number_of_strangers_keeps_an_agent_out() -> None:
    """It goes on speaking: the strangers that have been silent longest give way."""
    book = ReportBook()
    book.expect({"7": None})
    for n in range(1, 100):
        book.ingest(made(n, token=f"{n:064x}"))
        book.ingest(made(n, steps=n))

    book.expect({"7": token_fingerprint(TOKEN)})
    assert book.get("7").report.steps == 99


@pytest.mark.thorough
def test_what_is_kept_of_unknown_jobs_is_little() -> None:
    """However many there are said to be: the last few hundred, one of which may be new."""
    book = ReportBook()
    tracemalloc.start()
    for n in range(20_000):
        book.ingest(made(1, job=str(n + 1), node="n" * 255, token=f"{n:064x}"))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 2**20
    book.expect({"20000": token_fingerprint(f"{19_999:064x}")})
    assert book.get("20000") is not None


def test_what_is_kept_of_a_known_job_is_little() -> None:
    """However many runs it claims, and however often it reports."""
    book = trusting()
    tracemalloc.start()
    for n in range(5000):
        book.ingest(made(n, restart=n // 100, steps_per_s=1.0, node="n" * 255))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 2**16


def test_what_a_report_brings_about_costs_that_report() -> None:
    """The listener may stumble over anything that a user says."""
    book = trusting()

    def stumble(report: Report) -> None:
        assert 1 / report.steps

    book.listener = stumble
    book.ingest(made(1, steps=1))

    with pytest.raises(ChannelError, match="could not be made use of"):
        book.ingest(made(2, steps=0))


def test_replays_and_dead_incarnations_are_dropped() -> None:
    """A message that came before, or from a run that is over, changes nothing."""
    book = trusting()
    book.ingest(made(5, restart=1, steps=50))

    for old in (made(5, restart=1, steps=1), made(4, restart=1, steps=1), made(9, restart=0, steps=1)):
        with pytest.raises(ChannelError):
            book.ingest(old)

    assert book.get("7").report.steps == 50


def test_a_save_counts_from_when_it_was_asked() -> None:
    """Only a checkpoint heard of after the request, from this run, acknowledges it."""
    book = trusting()
    book.ingest(made(1, kind="saved", saved_step=10))
    asked = time.time()

    assert not book.saved_since("7", 0, asked)
    book.ingest(made(2, kind="saved", saved_step=20))
    assert book.saved_since("7", 0, asked) and not book.saved_since("7", 1, asked)


def test_events_bring_the_round_forward() -> None:
    """A first word and an end are events; progress is not."""
    book = trusting()
    book.ingest(made(1, kind="hello"))
    assert book.event.is_set()
    book.event.clear()
    book.ingest(made(2, steps=1))
    assert not book.event.is_set()
    book.ingest(made(3, kind="bye", exit_code=0))
    assert book.event.is_set() and book.get("7").ended


def test_a_server_that_wants_another_number_of_workers_brings_the_round_forward() -> None:
    """Once for each number; what it says of itself otherwise is no news."""
    book = trusting()
    book.ingest(made(1, kind="hello"))
    heard = []
    for seq, wanted in enumerate((1, 1, 2, 2, None, 2), 2):
        book.event.clear()
        book.ingest(made(seq, wanted=wanted))
        heard.append(book.event.is_set())

    assert heard == [True, False, True, False, False, True]
    assert book.get("7").first_step is not None


def test_the_next_training_of_a_run_has_not_made_its_last_step() -> None:
    """What is saved is the last one's for a while."""
    book = trusting()
    book.ingest(made(1, steps=800, total_steps=800, saved_step=800))
    assert book.finishes("7", 0)
    book.ingest(made(2, steps=5, total_steps=800, saved_step=800))
    assert not book.finishes("7", 0)
    book.ingest(made(3, steps=800, total_steps=800, saved_step=790))
    assert book.finishes("7", 0)


@pytest.mark.parametrize(("kind", "kept"), [("report", [4.0]), ("hello", [4.0]), ("saved", []), ("bye", [])])
def test_a_speed_is_told_while_steps_are_made(kind: str, kept: list[float]) -> None:
    """A greeting may be all that is heard of a job by who soon ends; a rate amid a save, or an end, is none."""
    book = trusting()
    book.ingest(made(kind=kind, steps=9, steps_per_s=4.0, saved_step=9, exit_code=0))

    assert book.get("7").speeds == kept


def test_what_was_heard_moves_with_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every moment that is kept becomes one of the new time, except one that is of it already."""
    book, now = trusting(), 50_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    book.ingest(made(1, resumable=True, steps=1, total_steps=9))
    book.ingest(made(2, kind="saved", steps=2, saved_step=2))
    book.ingest(made(3, steps=9, total_steps=9))
    news = book.get("7")
    was = (news.heard, news.first_step, news.saved_at, news.done_at)
    now = 10_030.0  # set back by 40,000 s, half a minute ago
    book.ingest(made(4, steps=9))

    book.clock_set(-40_000.0, 60.0)

    assert was == (50_000.0,) * 4
    assert (news.first_step, news.saved_at, news.done_at) == (10_000.0,) * 3
    assert news.heard == 10_030.0, "it was heard by the new time"
