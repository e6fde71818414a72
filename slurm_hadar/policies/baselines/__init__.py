"""Policies to compare with, built in."""
