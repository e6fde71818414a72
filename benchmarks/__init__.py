"""Measurements, as ratios and parts of one run; ``python -m benchmarks`` runs them all and prints one JSON object."""
