"""A virtual cluster behind the controller's own rounds: traces in, completion times, bounds and pictures out."""
