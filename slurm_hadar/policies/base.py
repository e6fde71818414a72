"""What a policy is: a pure function from a snapshot to a plan."""

from __future__ import annotations

import abc
from typing import ClassVar

from slurm_hadar.model import Plan, Snapshot

__all__ = ["Policy"]


class Policy(abc.ABC):
    """Decides one round: which steerable job runs on which GPUs.

    ``allocate`` must be pure. It does no I/O, reads no clock (``snapshot.time`` is the time), draws no random number
    and keeps no state between calls: whatever it needs to remember must be in the snapshot. The same snapshot gives
    the same plan, in the simulator, in ``explain`` and in the live controller.

    A subclass takes its parameters as keyword arguments of its constructor, each annotated with ``int``, ``float``,
    ``bool`` or ``str`` so that the registry can read them from a command line, and raises ConfigError for values that
    make no sense. :class:`slurm_hadar.testing.policies.PolicyContract` holds the tests that every policy must pass.

    Example
    -------
    >>> from slurm_hadar.model import Plan
    >>> class Nothing(Policy):
    ...     name = "nothing"
    ...     def allocate(self, snapshot):
    ...         return Plan(self.name)
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round.

        Every active steerable job is either in ``plan.placements`` or has a ``Wait`` in ``plan.waits``. A running
        job that is not movable keeps exactly its placement. See :func:`slurm_hadar.policies.check.check_plan` for the
        full contract.
        """
