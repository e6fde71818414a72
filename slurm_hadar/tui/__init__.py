"""``hadar top``: the cluster live in a terminal. Needs the extra ``[tui]``."""
