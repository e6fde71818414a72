"""A map of regimes: every policy on clusters, loads and jobs of many kinds."""
