"""The predictor as the controller uses it: trained on ended jobs, asked for those of the queue."""
