"""The last step of a round: its changes are carried out, verified, and undone where they did not take."""
