"""The server: HTTP in front, worker processes behind, the scheduler between them."""
