"""What a training process and its agent tell each other, and the agent the controller."""
