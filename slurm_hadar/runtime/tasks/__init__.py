"""The tasks of a job's step: how many there are, on which nodes, which rank runs where, and where they meet."""
