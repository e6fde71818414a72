"""What of a study lasts: Optuna's storage, the record beside it, and what is remembered of its objective."""
