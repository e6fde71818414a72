"""What the workers of a job send to one another, what that costs on a cluster, and which worker goes to which
server."""
