"""Runs trials on the GPUs of one machine or one allocation, as wide as the allocator says."""
