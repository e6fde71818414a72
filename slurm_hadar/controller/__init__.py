"""The loop that steers a cluster, and its steps: observe, estimate, decide, guard, act, verify, record."""
