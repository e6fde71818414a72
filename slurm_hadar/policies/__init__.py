"""Scheduling policies: pure functions from a snapshot to a plan, a folder for each family."""

from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.registry import get, names, parameters, problems

__all__ = ["Policy", "check_plan", "get", "names", "parameters", "problems"]
