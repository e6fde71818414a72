"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

from slurm_hadar.errors import ConfigError

__all__ = ["MOST_BYTES", "size_bytes", "size_in_words"]

#: More than any GPU has; who says more has mistyped.
MOST_BYTES = 10**15
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?(?:e\+?\d{1,2})?) ?(?:([KMGT])(i?)B?|B?)", re.ASCII | re.IGNORECASE)
_STEPS = "KMGT"


def size_bytes(text: str) -> int:
    """``16000000000``, ``16e9``, ``16G`` and ``16GB`` (powers of 1000), ``16GiB`` and ``16Gi`` (of 1024), ``1.5G``, in
    bytes, parts of a byte cut off. Raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no size in bytes: 16000000000, 16G (powers of 1000) or 16GiB (of 1024)")
    number, unit, binary = match.groups()
    power = 0 if unit is None else _STEPS.index(unit.upper()) + 1
    size = int(Fraction(number) * (1024 if binary else 1000) ** power)
    if size > MOST_BYTES:
        raise ConfigError(f"{text!r} is more than any GPU has: at most {MOST_BYTES:.0e} bytes")
    return size


def size_in_words(size: int) -> str:
    """With four digits, in powers of 1000: ``14.92 GB``."""
    power = 0
    while power < len(_STEPS) and size >= 999.95 * 1000**power:
        power += 1
    return f"{size / 1000**power:.4g} {_STEPS[power - 1] if power else ''}B"
