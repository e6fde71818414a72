"""Trial groups on a virtual pool of GPUs."""
