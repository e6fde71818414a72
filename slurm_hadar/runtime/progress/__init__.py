"""What a training process and its agent tell each other, and how a training stands still and ends."""
