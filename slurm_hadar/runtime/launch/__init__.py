"""What hadar-srun and the agent know: srun's options, what slurmctld tells, the job's directory, retries, turns."""
