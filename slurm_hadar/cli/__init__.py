"""The commands; they parse, call and print, and hold no logic."""
