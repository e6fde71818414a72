"""Copies of one training that run at once on unlike nodes and consolidate their weights (HadarE), on the job's side."""
