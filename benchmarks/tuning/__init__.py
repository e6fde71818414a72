"""How near tuning's widths come to the best."""
