"""What campaigns on a real controller have in common: how it is kept up, watched, and told of."""
