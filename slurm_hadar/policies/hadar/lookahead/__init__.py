"""Prices that look ahead: what a GPU-second costs the jobs behind."""
