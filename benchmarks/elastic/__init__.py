"""Elastic gangs measured: on the traces of Sia (SOSP 2023), against what Sia's own simulator gives."""
