"""Real trials on emulated GPUs: time to the same target, ours against Optuna and Ray Tune as they are."""
