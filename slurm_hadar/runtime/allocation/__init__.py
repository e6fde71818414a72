"""Of the Slurm job that this process runs in: the GPUs that it has, on which nodes, and job steps on them."""
