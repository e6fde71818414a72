"""Hadar: task-level, heterogeneity-aware scheduling by prices."""
