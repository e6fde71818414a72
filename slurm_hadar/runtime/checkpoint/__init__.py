"""Checkpoints: what is in them, who writes them and when, and how they are found again."""
