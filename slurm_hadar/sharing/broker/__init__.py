"""One GPU's broker: processes ask it for turns, over a Unix socket.

:mod:`~slurm_hadar.sharing.broker.arbiter` decides, without clock and socket;
:mod:`~slurm_hadar.sharing.broker.server` is the loop around it, :mod:`~slurm_hadar.sharing.broker.client` the side of a
job.
"""
