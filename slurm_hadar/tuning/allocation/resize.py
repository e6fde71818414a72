"""When a trial that runs is worth another width: DynamicFluid's two tests."""

from __future__ import annotations

__all__ = ["grow", "shrink"]


def grow(now_s: float, then_s: float, cost_s: float) -> bool:
    """Whether more GPUs, or faster ones, pay: what is left takes ``then_s`` with them, ``now_s`` as it is, and the
    change ``cost_s`` (Fluid, section 4.3, algorithm 2)."""
    return then_s + cost_s < now_s


def shrink(now_s: float, then_s: float, cost_s: float, now_gpus: float, then_gpus: float) -> bool:
    """Whether fewer GPUs pay: the GPU time that is left falls (Fluid, section 4.3, algorithm 2)."""
    return then_gpus * (then_s + cost_s) < now_gpus * now_s
