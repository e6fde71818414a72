"""Whole comments: read, written, and changed in one key with all else as its owner wrote it."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from slurm_hadar.comment.keys import KEYS, JobComment
from slurm_hadar.errors import CommentError

__all__ = [
    "MOST_BYTES",
    "PREFIX",
    "compose",
    "is_ours",
    "looks_like_ours",
    "parse",
    "read",
    "render",
    "with_asked",
    "with_key",
]

PREFIX = "hadar:"
MOST_BYTES = 2048  # of the whole comment; looked at before anything else is
_PLAIN = re.compile(r"[!-~]{1,512}")  # what scontrol takes unquoted and unchanged
_BLANKS = " \t\n\r\v\f"


def is_ours(comment: str) -> bool:
    """Whether a Slurm comment is addressed to this scheduler at all."""
    return comment.startswith(PREFIX)


def looks_like_ours(comment: str) -> bool:
    """Whether its owner seems to have meant it for this scheduler, which does not read it: ``Hadar:``, ``hadar,``."""
    return not is_ours(comment) and re.match(r"\s*hadar(?![A-Za-z0-9])", comment[:32], re.IGNORECASE) is not None


def parse(comment: str) -> JobComment:
    """Read a ``hadar:`` comment.

    Raises CommentError naming the key, what is wrong with it, and what would be right.
    """
    if not is_ours(comment):
        raise CommentError(f"comment does not start with {PREFIX!r}")
    if (fault := _too_long(comment)) is not None:
        raise CommentError(fault)
    body = comment[len(PREFIX) :].strip(_BLANKS)
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for pair in body.split(",") if body else []:
        key, equals, value = pair.partition("=")
        if key not in KEYS:
            raise CommentError(f"unknown key {key!r} in the hadar: comment; valid keys: {', '.join(KEYS)}")
        if not equals or not value:
            raise CommentError(f"key {key!r} in the hadar: comment needs a value, such as {key}={KEYS[key].example}")
        if key in seen:
            raise CommentError(f"key {key!r} stands twice in the hadar: comment")
        seen.add(key)
        try:
            found.update(KEYS[key].read(value))
        except ValueError as error:
            raise CommentError(
                f"{key}={value} in the hadar: comment {error}, such as {key}={KEYS[key].example}"
            ) from None
    return JobComment(**found)


def _too_long(comment: str) -> str | None:
    size = len(comment.encode(errors="replace"))
    return None if size <= MOST_BYTES else f"the hadar: comment has {size} bytes; at most {MOST_BYTES} are read"


def with_asked(text: str, shape: tuple[int, int, int, int], mac: str) -> str | None:
    """The comment with ``asked=`` for this shape (GPUs, nodes, tasks, CPUs) and its MAC in it, all else as its owner
    wrote it; None if it says so already, or cannot be read."""
    comment, fault = read(text)
    if not is_ours(text) or fault is not None or (comment.asked, comment.asked_mac) == (shape, mac):
        return None
    changed = _with(text, "asked", _joined(shape, mac))
    return changed if _PLAIN.fullmatch(changed) and read(changed)[1] is None else None


def with_needs(text: str, needs_mib: tuple[int, int]) -> str:
    """The comment with ``needs=`` for these MiB of persistent and ephemeral memory in it, all else as its owner wrote
    it; the very text if it says so already, or cannot be read."""
    comment, fault = read(text)
    if not is_ours(text) or fault is not None or comment.needs_mib == needs_mib:
        return text
    changed = _with(text, "needs", "+".join(map(str, needs_mib)))
    return changed if _PLAIN.fullmatch(changed) and read(changed)[1] is None else text


def with_key(text: str, fingerprint: str) -> str:
    """The comment with ``key=`` for this fingerprint in it, all else as its owner wrote it; the very text if it says so
    already."""
    return text if f"key={fingerprint}" in _pairs(text) else _with(text, "key", fingerprint)


def _with(text: str, key: str, value: str) -> str:
    others = (pair for pair in _pairs(text) if not pair.startswith(f"{key}="))
    return PREFIX + ",".join([*others, f"{key}={value}"])


def _pairs(text: str) -> list[str]:
    return [pair for pair in text[len(PREFIX) :].strip(_BLANKS).split(",") if pair]


def _joined(shape: tuple[int, int, int, int], mac: str | None) -> str:
    return "/".join([*map(str, shape), *([mac] if mac is not None else [])])


def read(text: str) -> tuple[JobComment, str | None]:
    """What a Slurm comment tells us, and why it cannot be read: None if it can be, or is not addressed to us.

    What cannot be read tells nothing.
    """
    if not is_ours(text):
        return JobComment(), None
    if (fault := _too_long(text)) is not None:  # before it is kept: others' texts must not fill the memory
        return JobComment(), fault
    return _read(text)


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> tuple[JobComment, str | None]:
    try:
        return parse(text), None
    except CommentError as error:
        return JobComment(), str(error)


def render(comment: JobComment) -> str:
    """The comment text that parses back to ``comment``."""
    pairs = []
    for field in fields(comment):
        value = getattr(comment, field.name)
        if value is None or field.name == "asked_mac":
            continue
        pairs.append(
            f"asked={_joined(value, comment.asked_mac)}" if field.name == "asked" else _pair(field.name, value)
        )
    return PREFIX + ",".join(pairs)


def compose(keys: Mapping[str, Any]) -> str:
    """A comment of these keys: True and False are yes and no, several values are joined by ``+``, None is left out.
    Raises CommentError."""
    written = {key: _value(value) for key, value in keys.items() if value is not None}
    for key, value in written.items():
        if "," in value:
            raise CommentError(f"{key}={value}: a comma would end it and begin another key")
    text = PREFIX + ",".join(f"{key}={value}" for key, value in written.items())
    parse(text)
    return text


def _pair(field: str, value: Any) -> str:
    key, write = _WRITTEN.get(field, (field, _value))
    return f"{key}={write(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (set, frozenset, list, tuple)):
        several = map(_value, value)
        return "+".join(several if isinstance(value, (list, tuple)) else sorted(several))
    return _plain(value) if isinstance(value, float) else str(value)


def _plain(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _seconds(value: float) -> str:
    return f"{_plain(value)}s"


def _written_gpus(sizes: range | tuple[int, ...]) -> str:
    return f"{sizes[0]}-{sizes[-1]}" if isinstance(sizes, range) else "+".join(map(str, sizes))


def _written_nodes(nodes: tuple[int, int]) -> str:
    low, high = nodes
    return f"{low}" if low == high else f"{low}-{high}"


# field: (key, how its value is written), where the key has another name or the value another form than most
_WRITTEN: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "gpus": ("gpus", _written_gpus),
    "nodes": ("nodes", _written_nodes),
    "mem_gb": ("mem", lambda size: f"{size}g"),
    "deadline": ("deadline", lambda when: dt.datetime.fromtimestamp(when, dt.UTC).isoformat()),
    "deadline_after_s": ("deadline", _seconds),
    "max_time_s": ("max_time", _seconds),
    "needs_mib": ("needs", lambda sizes: "+".join(map(str, sizes))),
    "slow_down": ("share", lambda times: "no" if times == 1.0 else _plain(times)),
    "period_s": ("period", _seconds),
    "period_steps": ("period", str),
}
