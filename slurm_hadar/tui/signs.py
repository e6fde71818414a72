"""The characters that pictures on a terminal are made of, and such as every terminal has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PLAIN", "RICH", "Signs", "signs_for"]


@dataclass(frozen=True, slots=True)
class Signs:
    """``steps`` from nothing to full, ``used``, ``free`` and ``down`` for GPUs, ``cut`` where words were left out."""

    steps: str
    used: str
    free: str
    down: str
    cut: str

    def sparkline(self, values: Sequence[float], most: float, width: int) -> str:
        """At most ``width`` characters, one for as many values as it takes, which show the highest of them; from 0 to
        ``most``."""
        count = min(width, len(values))
        if count <= 0:
            return ""
        parts = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
        top = len(self.steps) - 1
        return "".join(
            self.steps[min(top, round(top * max(part) / most))] if most > 0 else self.steps[0] for part in parts
        )

    def cut_to(self, text: str, width: int) -> str:
        """``text`` in ``width`` characters, cut after a word where it has some."""
        if len(text) <= width:
            return text
        kept = text[: max(0, width - len(self.cut))]
        words = kept.rsplit(" ", 1)[0] if " " in kept and text[len(kept)] != " " else kept
        return (words if 2 * len(words) > width else kept).rstrip(" ,;:") + self.cut


RICH = Signs("▁▂▃▄▅▆▇█", "█", "·", "x", "…")
PLAIN = Signs("_.,-=+*#", "#", ".", "x", "..")


def signs_for(encoding: str | None) -> Signs:
    """What a terminal with this encoding can show."""
    return RICH if encoding and encoding.lower().replace("-", "").startswith("utf") else PLAIN
