"""What users can do to a controller and to each other, tried on purpose on a real private Slurm that has limits."""
