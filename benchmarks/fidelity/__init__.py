"""The same trace on a private, real Slurm cluster and in the simulator: how far the two are apart."""
