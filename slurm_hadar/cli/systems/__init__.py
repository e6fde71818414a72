"""Sharing, tuning and serving: what runs inside a job."""
