"""What a simulation gives: its result, what it is measured by, and the bounds that it is held against."""
