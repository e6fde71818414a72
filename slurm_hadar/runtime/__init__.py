"""The job side: what runs on compute nodes, beside or inside the training."""
