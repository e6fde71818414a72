"""Batches, and who of a gang takes which samples."""
