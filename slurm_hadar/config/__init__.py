"""The administrator's one TOML file: schema, defaults, bounds, and where each value came from.

Files are read in this order, later ones win: ``/etc/slurm-hadar/config.toml``, ``/etc/slurm-hadar/config.d/*.toml``
(by name), the file named by ``--config`` or ``$HADAR_CONFIG`` (which then replaces the first two), and last the
``section.key=value`` settings of the command line.
"""

from __future__ import annotations

from slurm_hadar.config.files import changed, given, keeping, load, with_given
from slurm_hadar.config.schema import (
    ROUND_S,
    AuditSection,
    Config,
    ControllerSection,
    GuardSection,
    HooksSection,
    JobsSection,
    LogSection,
    Mode,
    NetworkSection,
    PartitionSection,
    PredictSection,
    SharedBy,
    SharedGpus,
)

__all__ = [
    "ROUND_S", "AuditSection", "Config", "ControllerSection", "GuardSection", "HooksSection", "JobsSection",
    "LogSection", "Mode", "NetworkSection", "PartitionSection", "PredictSection", "SharedBy", "SharedGpus", "changed",
    "given", "keeping", "load", "with_given",
]  # fmt: skip
