"""How Slurm is read and told: by its commands, by pyslurm, or by what tests hold in memory."""
