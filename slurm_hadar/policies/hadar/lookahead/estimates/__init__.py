"""What is known of the jobs' speeds and lengths, and how far it is to be believed."""
