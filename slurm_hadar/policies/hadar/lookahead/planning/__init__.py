"""Plans of a queue, job by job: played forward to their ends, and improved."""
