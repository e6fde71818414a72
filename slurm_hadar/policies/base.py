"""What a policy is: a pure function from a snapshot to a plan."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Plan, Snapshot
from slurm_hadar.policies.toolkit.admission import within_bounds
from slurm_hadar.policies.toolkit.contained import contained
from slurm_hadar.policies.toolkit.copies import one_copy_each
from slurm_hadar.policies.toolkit.shared_gpus.pairing import UNKNOWN_RUNTIME_S, with_guests
from slurm_hadar.policies.toolkit.whole_nodes import in_whole_nodes

__all__ = ["UNKNOWN_RUNTIME_S", "Policy"]


class Policy(abc.ABC):
    """Decides one round: which steerable job runs on which GPUs.

    ``allocate`` must be pure. It does no I/O, reads no clock (``snapshot.time`` is the time), draws no random number
    and keeps no state between calls: whatever it needs to remember must be in the snapshot. The same snapshot gives
    the same plan, in the simulator, in ``explain`` and in the live controller.

    A subclass takes its parameters as keyword arguments of its constructor, each annotated with ``int``, ``float``,
    ``bool`` or ``str`` so that the registry can read them from a command line, and raises ConfigError for values that
    make no sense. A policy is shown one copy of each forked job, and need not know that there are others; one that
    decides about copies itself says ``forks = True``. It reckons with GPUs alone: what else the cluster would refuse is
    seen to by :mod:`slurm_hadar.policies.toolkit.admission`; a job that has its nodes to itself is a gang of all GPUs
    there to it (:mod:`slurm_hadar.policies.toolkit.whole_nodes`). It gives out whole GPUs: who may run beside whom on
    one is decided after it, by :mod:`slurm_hadar.policies.toolkit.shared_gpus.pairing`, unless it says ``pairs``.
    :class:`slurm_hadar.testing.policies.PolicyContract` holds the tests that every policy must pass.

    Example
    -------
    >>> from slurm_hadar.model import Plan
    >>> class Nothing(Policy):
    ...     name = "nothing"
    ...     def allocate(self, snapshot):
    ...         return Plan(self.name)
    """

    name: ClassVar[str]
    forks: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # here rather than in each caller: the loop, the simulator and explain must all see the same
        if "allocate" in cls.__dict__:
            own = cls.allocate if cls.forks else one_copy_each(cls.allocate)
            whole = contained(with_guests(within_bounds(in_whole_nodes(own))))
            cls.allocate = whole  # type: ignore[assignment, method-assign]

    def require_at_least(self, **least: float) -> None:
        """Raise ConfigError for the first of these parameters that is not a finite number of at least so much."""
        for key, bound in least.items():
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= bound):
                raise ConfigError(f"policy {self.name}: {key}={value} must be a finite number of at least {bound}")

    @property
    def pairs(self) -> bool:
        """Whether it says itself which jobs share a GPU
        (:func:`slurm_hadar.policies.toolkit.shared_gpus.pairing.with_guests`)."""
        return False

    @property
    def at_once_s(self) -> float | None:
        """None: it decides in the controller's rounds. Else it stands for a scheduler inside Slurm, and a simulation
        asks it whenever a job arrives or ends, and once more at the next whole multiple of so many seconds."""
        return None

    @abc.abstractmethod
    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round.

        Every active steerable job is either in ``plan.placements`` or has a ``Wait`` in ``plan.waits``. A running
        job that is not movable keeps exactly its placement. See :func:`slurm_hadar.policies.check.check_plan` for the
        full contract. Whatever it raises, its callers see as a PolicyError.
        """
