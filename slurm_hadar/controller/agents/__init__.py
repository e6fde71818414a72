"""What jobs say and leave: the channel to their agents, the spools in their directories, the copies of forked jobs."""
