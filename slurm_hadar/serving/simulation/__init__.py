"""A trace of requests, played on workers whose batches follow a law."""
