"""The only rooms that speak Slurm: a backend seam, its command-line and pyslurm forms, and the parsing they share."""
