"""What a checkpoint holds of a training: taken from its objects, made fit for files, and put back into them."""
