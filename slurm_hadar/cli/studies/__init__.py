"""What might be, on paper: simulations, comparisons, replays, predictions."""
