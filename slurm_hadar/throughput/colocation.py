"""What two trainings on one GPU keep of their speeds: published figures, shipped with the package.

Whoever knows only these knows little of a job of a model that they do not name: such a job is paired with nobody until
it has been measured (:mod:`slurm_hadar.throughput.profiles`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import positive, rows
from slurm_hadar.model import Kept, Pairing

__all__ = ["both_ways", "published"]

_FIELDS = ("gpu_type", "one", "other", "one_keeps", "other_keeps")


@functools.cache
def published() -> Mapping[Pairing, Kept]:
    """Gavel's measurements of 26 workloads on K80, P100 and V100 (:mod:`slurm_hadar.model` says what the keys are).

    Two that are not listed for a type did not fit into its memory together. More than was made alone is the
    measurement's noise, and counts as all of it.
    """
    text = (resources.files("slurm_hadar.throughput") / "colocation.csv").read_text(encoding="utf-8")
    found: dict[Pairing, Kept] = {}
    for where, row in rows(text.splitlines(), "colocation.csv", _FIELDS, ()):
        one, other = (positive(row[name], where, name) for name in ("one_keeps", "other_keeps"))
        if row["one"] > row["other"]:
            raise TraceError(f"{where}: {row['one']} must come before {row['other']}")
        found[row["one"], row["other"], row["gpu_type"]] = (min(1.0, one), min(1.0, other))
    return both_ways(found)


def both_ways(kept: Mapping[Pairing, Kept]) -> dict[Pairing, Kept]:
    """The same with each pair in either order."""
    turned = {(other, one, gpu_type): (b, a) for (one, other, gpu_type), (a, b) in kept.items()}
    return {**kept, **turned}
