"""How much work a job will be, from what its like were before: history, features, predictors, their store."""
