"""What is wrong with a configuration, in words: where it stands, the key, and what may be meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from slurm_hadar.config.schema import Config

__all__ = ["COMMAND_LINE", "lines_of"]

#: The origin of what is set there.
COMMAND_LINE = "command line"
_UNKNOWN = "configuration"


def lines_of(error: ValidationError, origins: Mapping[str, str]) -> list[str]:
    """A line for each fault, in the order of the files and their lines: where it stands, the key, what is wrong, and
    for an unknown key what may be meant."""
    found = {}
    for fault in error.errors(include_url=False):
        path = [str(p) for p in fault["loc"]]
        name = ".".join(path)
        within = (origin for key, origin in origins.items() if key.startswith(f"{name}."))
        above = (origins[key] for n in range(len(path) - 1, 0, -1) if (key := ".".join(path[:n])) in origins)
        origin = origins.get(name) or next(within, None) or next(above, _UNKNOWN)
        line = _line_of(origin, path[:-1] if fault["type"] == "missing" else path)
        found[origin, line, path[-1] if path else ""] = (
            f"{origin}{f':{line}' if line else ''}: {_wrong(fault, path, name)}"
        )
    return [found[place] for place in sorted(found)]


def _wrong(fault: Any, path: list[str], name: str) -> str:
    if fault["type"] == "extra_forbidden":
        valid = _valid_keys(path[:-1])
        near = difflib.get_close_matches(path[-1], valid, n=1)
        return f"unknown key {name}; {f'did you mean {near[0]}? ' if near else ''}valid here: {', '.join(valid)}"
    if fault["type"] == "missing":
        return f"{name} is missing"
    if fault["type"] == "tuple_type":
        return f"{name} = {fault['input']!r}: input should be a list, as [{fault['input']!r}]"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{name} = {fault['input']!r}: {message[:1].lower()}{message[1:]}"


_SECTION = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]")
_SETTING = re.compile(r"""\s*([\w."'-]+)\s*=""")


def _line_of(origin: str, path: list[str]) -> int:
    """The line of a key or section in a file; 0 where the origin is none, or the key is written otherwise."""
    try:
        lines = (
            Path(origin).read_text(encoding="utf-8-sig").splitlines() if origin not in (COMMAND_LINE, _UNKNOWN) else []
        )
    except (OSError, ValueError):
        lines = []
    section: list[str] = []
    for number, line in enumerate(lines, 1):
        if found := _SECTION.match(line):
            section = _keys(found[1])
        elif found := _SETTING.match(line):
            if [*section, *_keys(found[1])] == path:
                return number
            continue
        if section == path:
            return number
    return 0


def _keys(text: str) -> list[str]:
    return [part.strip(" \"'") for part in text.split(".")]


def _valid_keys(path: list[str]) -> list[str]:
    """What may stand at ``path``; the entries of a table of names (partitions, network.types) are all alike."""
    where: Any = Config
    for part in path:
        where = get_args(where)[1] if get_origin(where) is dict else where.model_fields[part].annotation
    if get_origin(where) is dict:
        return ["NAME"]
    return sorted(k for k in where.model_fields if k != "origins")
