"""Faults on purpose: a real controller on a real private Slurm, both broken again and again, and what must hold."""
