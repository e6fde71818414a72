"""What an administrator should know before the controller acts here: one judgement per thing looked at."""
