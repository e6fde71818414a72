"""The grammar of the hadar: comment."""

from __future__ import annotations

import datetime as dt
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.comment import (
    KEYS,
    MOST_BYTES,
    JobComment,
    compose,
    is_ours,
    parse,
    read,
    render,
    with_asked,
    with_key,
)
from slurm_hadar.errors import CommentError
from slurm_hadar.model import Fork, Mix

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
COUNTS = st.integers(1, 10**9)
MACS = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)


@st.composite
def comments(draw: st.DrawFn) -> JobComment:
    """Any comment that the grammar can say."""
    low = draw(st.integers(1, 50))
    deadline = draw(st.sampled_from(["none", "at", "after"]))
    period = draw(st.sampled_from(["none", "steps", "span"]))
    asked = draw(st.none() | st.tuples(st.integers(1, 9), st.just(1), st.integers(1, 99), st.integers(1, 99)))
    return JobComment(
        model=draw(st.none() | NAMES),
        batch=draw(st.none() | COUNTS),
        steps=draw(st.none() | COUNTS),
        gpus=draw(st.none() | st.just(range(low, low + 4)) | st.just((low, low + 4, low + 9)) | st.just((low,))),
        nodes=draw(st.none() | st.just((low, low)) | st.just((low, low + 3))),
        mix=draw(st.none() | st.sampled_from(list(Mix))),
        graph=draw(st.none() | st.sampled_from(["resnet50", "gpt2-xl/pp4/dp2/tp2/mb8", "../graphs/mine.toml"])),
        types=draw(st.none() | st.frozensets(NAMES, min_size=1, max_size=3)),
        retry=draw(st.none() | st.integers(1, 99)),
        mem_gb=draw(st.none() | st.integers(1, 9999)),
        prefer=draw(st.none() | st.frozensets(NAMES, min_size=1, max_size=3)),
        ckpt=draw(st.none() | st.booleans()),
        lose=draw(st.none() | st.booleans()),
        pin=draw(st.none() | st.booleans()),
        weight=draw(st.none() | st.integers(1, 999_000).map(lambda n: n / 1000 + 0.001)),
        deadline=draw(st.integers(0, 4 * 10**9).map(float)) if deadline == "at" else None,
        deadline_after_s=draw(st.integers(1, 10**7).map(float)) if deadline == "after" else None,
        requeue_on_timeout=draw(st.none() | st.booleans()),
        max_time_s=draw(st.none() | st.integers(1, 10**8).map(float)),
        restart=draw(st.none() | st.integers(0, 86400).map(float)),
        fork=draw(st.none() | st.sampled_from(list(Fork))),
        period_steps=draw(COUNTS) if period == "steps" else None,
        period_s=draw(st.integers(1, 10**6).map(float)) if period == "span" else None,
        lease=draw(st.none() | st.integers(1, 99999)),
        asked=asked,
        asked_mac=draw(st.none() | MACS) if asked else None,
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
        ("hadar:steps=1000000000000000", "at most 15 digits"),
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
        ("hadar:mem=32", "whole gigabytes"),
        ("hadar:deadline=2026-11-20T18:00", "must name the offset from UTC"),
        ("hadar:deadline=soon", "6h"),
        ("hadar:deadline=9999-12-31T23:59-12:00", "must be a time"),
        ("hadar:deadline=3651d", "must not be longer than 3650d"),
        ("hadar:deadline=99999999999s", "must be a time"),
        ("hadar:period=0s", "a number of steps"),
        ("hadar:period=" + "9" * 400, "a number of steps"),
        ("hadar:period=" + "9" * 400 + "d", "a number of steps"),
        ("hadar:period=0.0000000001s", "a number of steps"),
        ("hadar:max_time=0s", "a span such as 36h"),
        ("hadar:max_time=12", "a span such as 36h"),
        ("hadar:max_time=9999999999s", "must not be longer than 3650d"),
        ("hadar:requeue_on_timeout=on", "yes or no"),
        ("hadar:lease=100000", "at most 5 digits"),
        ("hadar:asked=3/2/2/2", "share equally"),
        ("hadar:asked=2/1/1/1/" + "A" * 32, "32 hexadecimal digits"),
        ("hadar:" + "," * 2048, "the hadar: comment has 2054 bytes; at most 2048 are read"),
        ("hadar:" + "é" * 1022, "has 2050 bytes"),
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


def test_time_limits() -> None:
    """What the job does at its limit, and how long it may run in all."""
    assert parse("hadar:requeue_on_timeout=yes,max_time=2d") == JobComment(requeue_on_timeout=True, max_time_s=172800.0)


@given(
    key=st.sampled_from(list(KEYS)),
    digits=st.text("0123456789", min_size=1, max_size=500),
    fraction=st.just("") | st.text("0123456789", min_size=1, max_size=400).map(lambda t: "." + t),
    unit=st.sampled_from(["", "s", "m", "h", "d"]),
)
def test_no_number_is_without_bounds(key: str, digits: str, fraction: str, unit: str) -> None:
    """However many digits: a number that is taken can be reckoned with as seconds from now, or is refused."""
    comment, fault = read(f"hadar:{key}={digits}{fraction}{unit}")
    for field in fields(comment):
        value = getattr(comment, field.name)
        if type(value) in (int, float):
            dt.timedelta(seconds=float(value) / 10**6)
            assert float(value) * 1e9 < 1e25
    assert fault is not None or comment != JobComment()


def test_a_long_comment_is_not_kept() -> None:
    """Its length is all that is looked at, and it fills no memory."""
    assert read("hadar:" + " " * (MOST_BYTES - 6)) == (JobComment(), None)
    comment, fault = read("hadar:" + " " * 10**6)
    assert comment == JobComment() and fault is not None and "1000006 bytes" in fault
    assert read("x" * 10**6) == (JobComment(), None), "of others: no fault"


def test_the_scheduler_notes_what_was_asked() -> None:
    """The shape and its seal replace what stood there, the owner's words stay; once is enough."""
    mac, other = "0" * 32, "f" * 32
    noted = with_asked("hadar:model=x,asked=9/9/9/9,steps=5", (4, 2, 2, 8), mac)

    assert noted == f"hadar:model=x,steps=5,asked=4/2/2/8/{mac}"
    assert read(noted)[0].asked == (4, 2, 2, 8) and read(noted)[0].asked_mac == mac
    assert with_asked(noted, (4, 2, 2, 8), mac) is None
    assert with_asked(noted, (4, 2, 2, 8), other) == noted.replace(mac, other)
    assert with_asked("not ours", (4, 2, 2, 8), mac) is None
    assert parse("hadar:asked=4/2/2/8") == JobComment(asked=(4, 2, 2, 8)), "the form without a seal is still read"


def test_the_key_never_breaks_the_grammar() -> None:
    """Whatever the comment was, with the key it parses, a key of another token is replaced, and all else stays."""
    key, other = "0123456789abcdef", "f" * 16
    for text in ("hadar:", "hadar:model=x", f"hadar:key={other},model=x", f"hadar:model=x,key={other}"):
        got = with_key(text, key)
        assert parse(got).key == key
        assert parse(got).model == parse(text).model
        assert with_key(got, key) == got
    assert with_key(f"hadar: steps=5,key={other},model=x\n", key) == f"hadar:steps=5,model=x,key={key}"


def test_keys_of_a_program_become_a_comment() -> None:
    """By the grammar that reads it: yes and no, plain numbers, several values; what cannot be read is refused."""
    assert compose({"steps": 5, "model": None, "pin": False, "types": {"v100", "k80"}}) == (
        "hadar:steps=5,pin=no,types=k80+v100"
    )
    assert compose({}) == "hadar:"
    assert parse(compose({"gpus": [2, 8, 4], "weight": 1e-3, "prefer": ("b", "a")})) == JobComment(
        gpus=(2, 4, 8), weight=1e-3, prefer=frozenset("ab")
    )
    with pytest.raises(CommentError, match="unknown key 'modle'"):
        compose({"modle": "x"})


def test_a_value_is_no_second_key() -> None:
    with pytest.raises(CommentError, match="model=a,types=k80: a comma would end it"):
        compose({"model": "a,types=k80"})
