"""slurm_hadar: heterogeneity-aware scheduling of deep-learning jobs on stock Slurm."""

__version__ = "0.1.0"
