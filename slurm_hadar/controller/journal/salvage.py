"""Reading back rows of a journal that a broken disk or a cut file has spoilt: what is damaged is left out, and said.

SQLite finds a broken structure when the file is opened. It cannot find letters that changed within a row.
"""

from __future__ import annotations

import functools
import json
import logging
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

__all__ = ["letters", "numbers_only", "row_object", "row_record", "row_round"]

log = logging.getLogger(__name__)
_Record = TypeVar("_Record")
_said: set[str] = set()


def letters(data: bytes) -> str:
    """A ``text_factory``: a damaged letter must not hide the other rows."""
    return data.decode("utf-8", "replace")


def row_object(text: object) -> dict[str, Any] | None:
    """The JSON object of a row; None if it is damaged."""
    try:
        content = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        return content
    _tell(text)
    return None


def row_round(text: object) -> dict[str, Any] | None:
    """The content of a round's row; None if it is damaged. An older version said in words only that it was skipped."""
    content = row_object(text)
    if content is not None:
        content.setdefault("skipped", str(content.get("note", "")).startswith("skipped: "))
    return content


def row_record(cls: Callable[..., _Record], text: object) -> _Record | None:
    """A dataclass from its JSON; None if it is damaged. Fields that an older version did not have take their defaults,
    and those that this one does not have are dropped."""
    content = row_object(text)
    if content is None:
        return None
    known = _fields(cls)
    content = {k: v for k, v in content.items() if k in known}
    if all(_is(content[k], known[k][0]) if k in content else known[k][1] for k in known):
        # JSON has lists only
        return cls(**{k: tuple(v) if typing.get_origin(known[k][0]) is Sequence else v for k, v in content.items()})
    _tell(text)
    return None


def numbers_only(rows: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
    """The rows whose values are all numbers or NULL, as they were written."""
    good = {k: v for k, v in rows.items() if all(type(x) in (int, float, types.NoneType) for x in v)}
    for key in rows.keys() - good.keys():
        _tell(key)
    return good


def _tell(what: object) -> None:
    """Once for each: some rows are read in every round."""
    short = f"{what!r:.80}"
    if short not in _said and len(_said) < 100:
        _said.add(short)
        log.warning("a damaged entry of the journal is left out: %s", short)


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[Any, bool]]:
    """{field: (its type, whether it has a default)}."""
    hints = typing.get_type_hints(cls)
    return {f.name: (hints[f.name], f.default is not MISSING or f.default_factory is not MISSING) for f in fields(cls)}


def _is(value: Any, hint: Any) -> bool:
    """Whether a value out of JSON is of a field's type; a float may stand there without its point."""
    if hint is Any:
        return True
    if isinstance(hint, types.UnionType):
        return any(_is(value, one) for one in typing.get_args(hint))
    if typing.get_origin(hint) in (list, Sequence):
        return isinstance(value, list) and all(_is(v, typing.get_args(hint)[0]) for v in value)
    if typing.get_origin(hint) in (dict, Mapping):
        of_key, of_value = typing.get_args(hint)
        return isinstance(value, dict) and all(_is(k, of_key) and _is(v, of_value) for k, v in value.items())
    return type(value) is hint or (hint is float and type(value) is int)
