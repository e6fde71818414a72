"""All checks, in the order in which an administrator meets their subjects."""

from __future__ import annotations

from collections.abc import Callable

from slurm_hadar.config import Config
from slurm_hadar.doctor import host_checks, queue_checks, slurm_checks
from slurm_hadar.doctor.finding import Finding, Verdict, cannot_tell
from slurm_hadar.doctor.host import Host, inspect_host
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.survey import Survey, Unknown, survey

__all__ = ["AWAY", "CHECKS", "examine", "judge"]

AWAY = "Slurm does not answer"  # what all checks say that need one
_NO_SLURM = "scontrol ping    # is SLURM_CONF right, is slurmctld up?"
_REACHED = ("slurm", "Everything the controller knows and does goes through slurmctld.")
_IN_SLURM = (*slurm_checks.CHECKS, *queue_checks.CHECKS)
#: The names of all checks.
CHECKS = (
    _REACHED[0],
    *(c.name for c in host_checks.CHECKS),
    *(c.name for c in _IN_SLURM),
    *(c.name for c in host_checks.SLURM_CHECKS),
)


def examine(config: Config, config_error: str = "", say: Callable[[str], object] = str) -> list[Finding]:
    """Look at this host and its Slurm, changing nothing. Every call to Slurm ends after ``slurm.timeout_s``.

    ``config_error`` is why the configuration could not be read, where ``config`` is the default instead. ``say``: as in
    :func:`survey`.
    """
    slurm = survey(CliBackend(config.slurm.timeout_s, retries=0), say)
    return judge(slurm, inspect_host(config, config_error, slurm))


def judge(slurm: Survey | Unknown, host: Host) -> list[Finding]:
    """All findings; those about a Slurm that does not answer are all unknown, after one that says so."""
    name, why = _REACHED
    reached = (
        Finding(name, Verdict.PROBLEM, slurm.why, why, _NO_SLURM)
        if isinstance(slurm, Unknown)
        else Finding(name, Verdict.OK, f"slurmctld of {slurm.identity} answers", why, "")
    )
    plain = isinstance(slurm, Unknown) or not slurm.may_all
    about_host = [Finding.of(check, check.judge(host), plain) for check in host_checks.CHECKS]
    if isinstance(slurm, Unknown):
        away = cannot_tell(AWAY)
        rest = [Finding.of(check, away, plain) for check in _IN_SLURM]
        return [reached, *about_host, *rest, *(Finding.of(check, away, plain) for check in host_checks.SLURM_CHECKS)]
    case = slurm_checks.SlurmCase(slurm, host.config)
    about_slurm = [Finding.of(check, check.judge(case), plain) for check in _IN_SLURM]
    return [
        reached,
        *about_host,
        *about_slurm,
        *(Finding.of(c, c.judge(host), plain) for c in host_checks.SLURM_CHECKS),
    ]
