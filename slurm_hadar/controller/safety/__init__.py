"""What keeps a controller from doing harm: limits, locks, clocks, and jobs that are left alone."""
