"""What hadar-srun knows: srun's options, the job's directory, ranks, retries."""
