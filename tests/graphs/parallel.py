"""Graphs of jobs for tests."""

from __future__ import annotations

from slurm_hadar.graphs.graph import JobGraph, Stage


def data_parallel(parameter_bytes: float, compute_s: float, workers: int) -> JobGraph:
    """A job whose ``workers`` each hold the whole model and all-reduce its ``parameter_bytes`` every iteration."""
    return JobGraph((Stage(compute_s, parameter_bytes, workers),))
