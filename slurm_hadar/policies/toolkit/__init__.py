"""What policies share: free GPUs and the search among them, limits, waits, forked jobs. Open to policies of others."""
