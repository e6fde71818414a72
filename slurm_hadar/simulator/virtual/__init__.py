"""The virtual cluster: nodes, jobs, copies and faults under a clock that jumps."""
