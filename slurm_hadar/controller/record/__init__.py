"""What is kept of each round, in the journal and for people to look at."""
