"""The processes that hold the models: where they run, how they are started and spoken to, and what each does."""
