"""Jobs that a policy left undone: averages are then over other jobs than under a policy that did them, and say nothing.

``policies`` are those of a comparison's document, as :func:`slurm_hadar.simulator.compare.document` gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_hadar.simulator.replay import HAPPENED

__all__ = ["comparable", "measured", "share_undone", "undone_by_all", "undone_lines"]


def measured(policies: Sequence[Mapping[str, Any]]) -> int:
    """How many jobs are measured, done or not."""
    return max((p.get("jobs", 0) + len(p.get("unfinished") or ()) for p in policies), default=0)


def undone_by_all(policies: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Jobs that no policy did, such as those that fit nowhere."""
    undone = [frozenset(p.get("unfinished") or ()) for p in policies if p["label"] != HAPPENED]
    return frozenset.intersection(*undone) if undone else frozenset()


def comparable(policies: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that did every job which any policy did: all their figures are of the same jobs."""
    never = undone_by_all(policies)
    most = measured(policies) - len(never)
    return [p for p in policies if p.get("jobs", 0) == most and never.issuperset(p.get("unfinished") or ())]


def share_undone(policy: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> str:
    """``21 of 80`` for a policy that left jobs undone, else empty."""
    undone = len(policy.get("unfinished") or ())
    return f"{undone} of {measured(policies)}" if undone else ""


def undone_lines(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each policy that left jobs undone, with the reason of the first."""
    lines = []
    for policy in policies:
        if share := share_undone(policy, policies):
            unfinished = policy["unfinished"]
            job, why = next(iter(unfinished.items()))
            more = f" (and {len(unfinished) - 1} more)" if len(unfinished) > 1 else ""
            lines.append(f"{policy['label']} left {share} jobs undone: job {job}{more}: {why}")
    return lines
