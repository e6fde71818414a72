"""What an administrator runs, asks and sets."""
