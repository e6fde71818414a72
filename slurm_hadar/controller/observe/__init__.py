"""The first step of a round: what Slurm says, what jobs report and what is remembered become one Snapshot."""
