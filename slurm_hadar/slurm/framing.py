"""Slurm's output cut into records, whatever users have put into it.

Almost any field may hold text of a user's (comments and names, but GRES, accounts, constraints and licences too), so
every field ends with a mark drawn anew for each read: nobody can write a text that forges another job's record. An
answer that was cut short raises SlurmParseError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from slurm_hadar.errors import SlurmParseError

__all__ = ["SEP", "format_option", "records"]

SEP = "\x1f"
_TYPED_BY_USERS = frozenset(("WorkDir", "Name", "Comment"))  # blanks may be part of them
_MOST_KNOWN = 4096


def format_option(fields: Sequence[str], mark: str) -> str:
    """The value of ``-O``/``--Format`` that makes :func:`records` able to read the output."""
    return ",".join(f"{name}:{SEP}{mark}" for name in fields)


def records(parts: Iterable[str], fields: Sequence[str], mark: str, what: str) -> Iterator[dict[str, str]]:
    """Split output, given as it comes, into records: every field ends with SEP and the mark, a record with a line end.
    One after the other, since all values of a long queue at once are many times its text."""
    known: dict[str, str] = {}  # most values stand in many records; each is looked at and kept once
    as_typed: dict[str, str] = {}  # not stripped
    typed = [index for index, name in enumerate(fields) if name in _TYPED_BY_USERS]
    for values in _values(parts, len(fields), SEP + mark, what):
        for kept in (known, as_typed):
            if len(kept) > _MOST_KNOWN:  # what stands in one record only, such as its number
                kept.clear()
        record = dict(zip(fields, [known.get(v) or known.setdefault(v, v.strip()) for v in values], strict=True))
        for index in typed:
            record[fields[index]] = as_typed.setdefault(values[index], values[index])
        yield record


def _values(parts: Iterable[str], count: int, field_end: str, what: str) -> Iterator[list[str]]:
    """The ``count`` values of each record."""
    record_end, coming = field_end + "\n", iter(parts)
    text, position, number = "", 0, 1
    while True:
        values: list[str] = []
        stop = position
        while len(values) < count:  # a field that begins with a line end looks like the end of a record
            found = text.find(record_end, stop + bool(values))
            if found >= 0:
                stop = found
                values = text[position:stop].split(field_end)
                continue
            more = [text[position:]]
            least = len(more[0])  # as much again, so that a record of any length is put together in linear time
            while least >= 0 and (part := next(coming, "")):
                more.append(part)
                least -= len(part)
            if len(more) == 1:
                if not text[position:]:
                    return
                raise SlurmParseError(f"{what} output is cut short in record {number}; nothing was changed")
            text, stop, position = "".join(more), stop - position, 0
        if len(values) != count:
            raise SlurmParseError(f"{what} output has no line end after record {number}; nothing was changed")
        position = stop + len(record_end)
        number += 1
        yield values
