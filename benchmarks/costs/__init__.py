"""What the parts of the project cost: rounds, starts, moves, checkpoints, the agent, pages, the journal."""
