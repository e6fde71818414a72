"""A-SRPT measured: its bound, its order against others, its speed, and simulation against a real Slurm."""
