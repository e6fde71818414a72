"""What stock Slurm can do to a job: who can be steered, in which shapes, and by which words."""
