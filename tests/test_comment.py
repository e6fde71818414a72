"""The grammar of the hadar: comment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.comment import KEYS, JobComment, is_ours, parse, read, render
from slurm_hadar.errors import CommentError
from slurm_hadar.model import Fork, Mix

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
COUNTS = st.integers(1, 10**9)


@st.composite
def comments(draw: st.DrawFn) -> JobComment:
    """Any comment that the grammar can say."""
    low = draw(st.integers(1, 50))
    deadline = draw(st.sampled_from(["none", "at", "after"]))
    period = draw(st.sampled_from(["none", "steps", "span"]))
    return JobComment(
        model=draw(st.none() | NAMES),
        batch=draw(st.none() | COUNTS),
        steps=draw(st.none() | COUNTS),
        gpus=draw(st.none() | st.just(range(low, low + 4)) | st.just((low, low + 4, low + 9)) | st.just((low,))),
        nodes=draw(st.none() | st.just((low, low)) | st.just((low, low + 3))),
        mix=draw(st.none() | st.sampled_from(list(Mix))),
        graph=draw(st.none() | st.sampled_from(["resnet50", "gpt2-xl/pp4/dp2/tp2/mb8", "../graphs/mine.toml"])),
        types=draw(st.none() | st.frozensets(NAMES, min_size=1, max_size=3)),
        prefer=draw(st.none() | st.frozensets(NAMES, min_size=1, max_size=3)),
        ckpt=draw(st.none() | st.booleans()),
        lose=draw(st.none() | st.booleans()),
        pin=draw(st.none() | st.booleans()),
        weight=draw(st.none() | st.integers(1, 999_000).map(lambda n: n / 1000 + 0.001)),
        deadline=draw(st.integers(0, 4 * 10**9).map(float)) if deadline == "at" else None,
        deadline_after_s=draw(st.integers(1, 10**7).map(float)) if deadline == "after" else None,
        restart=draw(st.none() | st.integers(0, 86400).map(float)),
        fork=draw(st.none() | st.sampled_from(list(Fork))),
        period_steps=draw(COUNTS) if period == "steps" else None,
        period_s=draw(st.integers(1, 10**6).map(float)) if period == "span" else None,
        lease=draw(st.none() | COUNTS),
        asked=draw(st.none() | st.tuples(st.integers(1, 9), st.just(1), st.integers(1, 99), st.integers(1, 99))),
        key=draw(st.none() | st.from_regex(r"[0-9a-f]{16}", fullmatch=True)),
    )


@given(comments())
def test_round_trip(comment: JobComment) -> None:
    """What is rendered parses back to the same comment."""
    back = parse(render(comment))

    assert back.weight == pytest.approx(comment.weight) if comment.weight else back.weight is None
    assert render(back) == render(comment)
    assert back.gpus == comment.gpus


@given(st.text())
def test_any_text_is_refused_in_one_line_or_parsed(text: str) -> None:
    """No text whatever makes the parser fail in another way."""
    try:
        parse("hadar:" + text)
    except CommentError as error:
        assert "\n" not in str(error).replace(repr(text), "")


def test_every_key_has_an_example_that_parses() -> None:
    """The documentation of each key is true."""
    for key, spec in KEYS.items():
        parse(f"hadar:{key}={spec.example}")


def test_bare_prefix_opts_in() -> None:
    """hadar: alone is a valid comment."""
    assert parse("hadar:") == JobComment()
    assert not is_ours("my own note")


def test_what_cannot_be_read_tells_nothing_but_why() -> None:
    """Comments of others are no fault; broken ones of ours are."""
    assert read("my own note") == (JobComment(), None)
    assert read("hadar:steps=5") == (JobComment(steps=5), None)
    comment, problem = read("hadar:steps=many")
    assert comment == JobComment() and problem is not None and "steps=many" in problem


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("hadar:modle=x", "unknown key 'modle'"),
        ("hadar:modle=x", "valid keys: model, batch, steps"),
        ("hadar:batch=0", "positive whole number"),
        ("hadar:batch=12x", "batch=12x"),
        ("hadar:steps", "needs a value"),
        ("hadar:steps=", "needs a value"),
        ("hadar:batch=1,batch=2", "stands twice"),
        ("hadar:gpus=8-2", "must be a range or a list of at most 8 sizes joined by '+', such as gpus=2-8"),
        ("hadar:nodes=4-2", "range such as 1-4"),
        ("hadar:mix=maybe", "never, gated, balanced"),
        ("hadar:graph=gpt2-xl/pp4/pp2", "each at most once, or a path ending in .toml, such as graph=gpt2-xl/pp4/dp2"),
        ("hadar:ckpt=true", "yes or no"),
        ("hadar:types=v100++k80", "joined by '+'"),
        ("hadar:deadline=2026-11-20T18:00", "offset from UTC"),
        ("hadar:deadline=soon", "6h"),
        ("hadar:weight=-1", "number from"),
        ("hadar:key=xyz", "16 hexadecimal"),
        ("hadar: model=x", None),
        ("hadar:model=a b", "letters, digits"),
        ("mine", "does not start"),
    ],
)
def test_faults_are_named(text: str, named: str | None) -> None:
    """A broken comment says which key is wrong and what would be right."""
    if named is None:
        assert parse(text).model == "x"
        return
    with pytest.raises(CommentError) as caught:
        parse(text)
    assert named in str(caught.value)


def test_deadlines() -> None:
    """A deadline is a time with its offset, or a span."""
    assert parse("hadar:deadline=90m").deadline_after_s == 5400
    assert parse("hadar:deadline=1970-01-01T01:00+01:00").deadline == 0
