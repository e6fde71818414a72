"""What a broker decides, without clock and socket: who is let in, and whose turn is next."""
