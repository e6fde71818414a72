"""Damage to a sample, drawn from a random generator: what cut files, foreign versions and bad luck do, and worse."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

__all__ = ["mutate"]

WORDS = (
    b"", b"\x00", b"\n", b"\r\n", b"\t", b",", b"=", b":", b"[", b"]", b"{", b"}", b'"', b"'", b"\\", b"|", b"%", b"#",
    b"\x1f", b"-1", b"0", b"00", b"1e309", b"-0.0", b"nan", b"inf", b"-inf", b"NaN", b"Infinity", b"1_000", b"0x10",
    b"9999999999999999999999", b"4294967294", b"4294967295", b"18446744073709551615", b"1e-320", b"2026-02-30",
    b"now+1", b"(null)", b"N/A", b"None", b"UNLIMITED", b"INVALID", b"[0-3]", b"[3-0]", b"[0-99999999]", b"[[1]]",
    b"gpu:v100:2", b"gres:gpu", b"hadar:", b"true", b"null", b"[]", b"{}", b"\xff\xfe", b"\xc3\x28", "é".encode(),
    "٣".encode(), "²".encode(), "\u2028".encode(), b"\xed\xa0\x80", b"a" * 300, b"9" * 300, b"(" * 50, b"[" * 3000,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 10**400, 0.0, -0.0, 1.5, 1e308, "", "x", "123", "\ud800", [], {},
    [[]], [None], {"": None}, {"a": 1}, [[0, 1]], [[1, 0]], [["a", "b"]], "a" * 5000, [1] * 2000,
)  # fmt: skip


def mutate(sample: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """One mutation, or a few after one another."""
    data = sample
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = _once(data, others, rng)
    return data[:200_000]


def _once(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    way = rng.randrange(10)
    if way == 0 and data[:1] in b"[{":
        return _json(data, rng)
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((0, 1, 1, 2, 4, 16, 200)))
    if way == 1:
        return data[:at]
    if way == 2:
        return data[:at] + data[end:]
    if way == 3:
        return data[:end] + data[at:]
    if way in (4, 5):
        return data[:at] + rng.choice(WORDS) + data[at if way == 4 else end :]
    if way == 6:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        return data[:at] + other[start : start + rng.randrange(100)] + data[end:]
    if way == 7:
        return _fields(data, rng)
    if way == 8:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    return _lines(data, rng)


def _fields(data: bytes, rng: random.Random) -> bytes:
    """Another word in the place of what stands between two separators."""
    separator = rng.choice((b",", b"|", b"\t", b"=", b"\x1f", b":", b" ", b'"', b"-"))
    parts = data.split(separator)
    if rng.random() < 0.5:
        parts[rng.randrange(len(parts))] = rng.choice(WORDS)
    else:
        a, b = rng.randrange(len(parts)), rng.randrange(len(parts))
        parts[a], parts[b] = parts[b], parts[a]
    return separator.join(parts)


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    if rng.random() < 0.5:
        lines[a], lines[b] = lines[b], lines[a]
    else:
        lines.insert(a, lines[b])
    return b"".join(lines)


def _json(data: bytes, rng: random.Random) -> bytes:
    """A value of the wrong kind somewhere in a JSON document, or a key too many or too few."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return data
    spots: list[tuple[Any, Any]] = []
    _collect(content, spots)
    if not spots:
        return data
    holder, key = rng.choice(spots)
    if rng.random() < 0.2 and isinstance(holder, dict):
        holder.pop(key)
    elif rng.random() < 0.1 and isinstance(holder, dict):
        holder[rng.choice(("new", "", "__class__", "self"))] = rng.choice(VALUES)
    else:
        holder[key] = rng.choice(VALUES)
    try:
        return json.dumps(content).encode()
    except ValueError:
        return data


def _collect(content: Any, spots: list[tuple[Any, Any]]) -> None:
    if isinstance(content, dict):
        pairs = list(content.items())
    elif isinstance(content, list):
        pairs = list(enumerate(content))
    else:
        return
    for key, value in pairs:
        spots.append((content, key))
        _collect(value, spots)
