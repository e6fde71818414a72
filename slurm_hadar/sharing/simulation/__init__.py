"""A trace of jobs on one simulated GPU, decided by the very functions that share a real one; and traces for it, read or
drawn."""
