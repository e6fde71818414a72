"""What a researcher asks about jobs, and does with them."""
