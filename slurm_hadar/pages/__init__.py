"""Pages and pictures that the dashboard, reports and comparisons share."""
