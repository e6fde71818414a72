"""One GPU that many jobs share: what the policies give, and whether its memory is ever promised twice."""
