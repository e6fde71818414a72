"""How fast jobs run on each GPU type, alone and beside another."""
