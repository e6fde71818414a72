"""What is known of each job: its record, the facts of a round, what a policy sees."""
