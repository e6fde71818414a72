"""Hyper-parameter tuning that fills the GPUs it has: trial groups by water-filling, after Fluid."""
