"""What runs in the process of a trial: the objective, and a stand-in for Optuna's trial that asks the tuner."""
