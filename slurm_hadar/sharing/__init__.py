"""Several jobs on one GPU, iteration by iteration, after Salus (Yu and Chowdhury, MLSys 2020, arXiv 1902.04610).

:mod:`~slurm_hadar.sharing.lanes` says where a job's memory goes, :mod:`~slurm_hadar.sharing.turns` whose iteration is
next: pure functions. :mod:`~slurm_hadar.sharing.simulation` runs a trace through them on one GPU,
:mod:`~slurm_hadar.sharing.broker` shares a real one by them, :mod:`~slurm_hadar.sharing.member` is the side of a
training. :func:`iteration` is for loops that no hook sees.
"""

from slurm_hadar.sharing.member import iteration

__all__ = ["iteration"]
