"""Gavel's policies: target shares from a linear programme, followed in rounds."""
