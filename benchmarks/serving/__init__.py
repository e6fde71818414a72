"""Serving, measured."""
