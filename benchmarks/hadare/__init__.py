"""HadarE measured: real training of four model families, forked over unlike nodes."""
