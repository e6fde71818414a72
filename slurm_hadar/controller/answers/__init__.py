"""What people ask of queue and journal, in one place for the terminal and the dashboard."""
