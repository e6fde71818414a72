"""What is known of training speeds: reference figures, measurements, and estimates for pairs never seen."""
