"""What other jobs tell of one that has not run yet."""

from __future__ import annotations

from slurm_hadar.controller.journal import JobRecord, PastJob
from slurm_hadar.controller.observe.speeds.peers import Peers


def _record(number: int, user: str, model: str, start_s: float | None, resumable: bool = False) -> JobRecord:
    return JobRecord(str(number), user=user, model=model, start_s=start_s, resumable=resumable)


def test_a_start_takes_what_the_nearest_kin_took() -> None:
    peers = Peers(
        [
            _record(1, "ada", "lm", 10.0),
            _record(2, "ada", "lm", 14.0),
            _record(3, "ada", "lm", 90.0),
            _record(4, "ada", "resnet18", 40.0),
            _record(5, "bob", "lm", 4.0),
            _record(6, "cid", "lm", None),
        ]
    )
    assert peers.start_s("ada", "lm") == 14.0
    assert peers.start_s("ada", "gan") == 27.0  # of 10, 14, 40, 90
    assert peers.start_s("cid", "lm") == 15.5  # of the two users' medians


def test_one_users_slow_starts_are_not_everybodys() -> None:
    slow = [_record(n, "eve", f"m{n}", 3600.0) for n in range(50)]
    others = [_record(100 + n, user, "lm", 5.0 + n) for n, user in enumerate(("ada", "bob", "cid"))]
    assert Peers(slow + others).start_s("dan", "lm") == 6.5


def test_nobody_has_started_yet() -> None:
    peers = Peers([_record(1, "ada", "lm", None)])
    assert peers.start_s("ada", "lm") is None
    assert not peers.save("ada", "lm", "")


def test_who_saves() -> None:
    peers = Peers([_record(1, "ada", "lm", None, resumable=True), _record(2, "bob", "lm", None)])
    assert peers.save("ada", "gan", "") and not peers.save("bob", "lm", "")


def test_the_last_of_a_kind_that_is_over_tells_whether_the_next_one_saves() -> None:
    """By its model, or its name where none is stated; who has failed tells nothing."""
    past = [PastJob("ada", "lm", "", "COMPLETED", saves, 4.0) for saves in (False, True)]
    past += [PastJob("ada", "lm", "", "FAILED", False, None), PastJob("ada", "", "plain", "COMPLETED", False, None)]
    peers = Peers([_record(4, "bob", "lm", None)], past)

    assert peers.save("ada", "lm", "plain") and not peers.save("ada", "", "plain")
    assert not peers.save("ada", "gan", "") and not peers.save("bob", "lm", "")
    assert peers.start_s("ada", "lm") == peers.start_s("bob", "lm") == 4.0
    again = Peers([_record(5, "ada", "other", None, resumable=True)], past)
    assert again.save("ada", "gan", "") and not again.save("ada", "", "plain")
