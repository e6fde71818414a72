"""Jobs that the scheduler may place and move, submitted without a script of one's own."""
