"""Who of a trial group has which GPUs, and how wide its trials are. Pure functions."""
