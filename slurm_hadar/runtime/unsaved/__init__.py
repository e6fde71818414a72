"""What goes on in a training but is in no checkpoint: it is found, and its owner is told."""
