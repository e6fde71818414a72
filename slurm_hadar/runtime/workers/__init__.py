"""The workers of one training: their agreements, and unequal shares for workers of unlike speed."""
