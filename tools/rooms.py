"""Make the table of rooms in docs/architecture.md from the contracts in .importlinter, which ``lint-imports`` checks.

python -m tools.rooms
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
_PREFIX = "importlinter:contract:"
_TABLE = re.compile(r"(?m)^\| room \|.*\n(?:\|.*\n)+")


def rooms() -> dict[str, tuple[str, list[str]]]:
    """For each room what it is, and which rooms may import it."""
    file = ConfigParser()
    file.read(ROOT / ".importlinter")
    found = {}
    for section in file.sections():
        if file.get(section, "type", fallback="") == "protected":
            users = [name.removeprefix("slurm_hadar.") for name in file.get(section, "allowed_importers").split()]
            found[section.removeprefix(_PREFIX)] = file.get(section, "name"), users
    return found


def table() -> str:
    """The table, as Markdown."""
    lines = ["| room | what it is | imported by |", "| --- | --- | --- |"]
    for room, (what, users) in rooms().items():
        lines.append(f"| `{room}` | {what} | {', '.join(f'`{user}`' for user in users) or 'nobody'} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with its table made anew."""
    return _TABLE.sub(lambda _: table(), page, count=1)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
