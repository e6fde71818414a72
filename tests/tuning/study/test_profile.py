"""Overheads that are remembered from run to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar.tuning.study.profile import Profile, Profiles


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
