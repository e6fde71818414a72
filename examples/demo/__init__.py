"""The demo: the same training jobs under stock Slurm and under Hadar, on a private cluster of unlike GPUs."""
