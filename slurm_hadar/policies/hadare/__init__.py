"""HadarE: Hadar with forked jobs, whose copies train at once on several nodes."""
