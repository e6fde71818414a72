"""Progress, checkpoints and resuming for trainings whose loop is a library's own."""
