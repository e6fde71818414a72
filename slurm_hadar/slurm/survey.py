"""What a Slurm is like, asked once and without changing anything: what ``hadar doctor`` judges.

Every answer is either a value or an :class:`Unknown` that says why there is none; nothing is guessed.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from slurm_hadar.errors import SlurmError, SlurmUnavailable
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.state import ClusterState, Daemon

__all__ = ["COMMANDS", "NOT_ASKED", "Survey", "Unknown", "is_user", "may_change_all", "name_of", "survey"]

COMMANDS = ("scontrol", "squeue", "sinfo", "scancel")
_EXTRA = ("sacct", "sacctmgr", "sdiag")
_OPERATORS = ("Operator", "Administrator")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be had, and why, in a few words. ``away``: there was no answer at all."""

    why: str
    away: bool = False


NOT_ASKED = Unknown("not asked")


@dataclass(frozen=True)
class Survey:
    """One Slurm at one instant.

    Parameters
    ----------
    user: who asks. uid: its number, which Slurm compares with SlurmUser.
    version: such as (22, 5, 8). identity: as :meth:`CliBackend.identity`.
    settings: ``scontrol show config`` as {name: value}, ``(null)`` as the empty text.
    daemons: all slurmctld, the primary first.
    state: jobs, nodes, partitions, as a round reads them.
    clock_ahead_s: least and most seconds by which slurmctld's clock is ahead of this host's; Slurm tells whole seconds.
    latest_start: the latest moment (epoch seconds) at which a slurmd says it was started, and its node.
    admin_level: ``None``, ``Operator`` or ``Administrator``, and the accounts that the user coordinates; "" for a user
        whom Slurm's database does not know.
    accounting: whether sacct answers.
    missing: commands that are not on PATH.
    noise: what scontrol complains of although it works.
    """

    user: str
    uid: int
    version: tuple[int, ...] | Unknown
    identity: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    daemons: tuple[Daemon, ...] | Unknown = ()
    state: ClusterState | Unknown = NOT_ASKED
    clock_ahead_s: tuple[float, float] | Unknown = NOT_ASKED
    latest_start: tuple[float, str] | Unknown = NOT_ASKED
    admin_level: tuple[str, tuple[str, ...]] | Unknown = NOT_ASKED
    accounting: bool | Unknown = NOT_ASKED
    missing: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()

    @property
    def may_all(self) -> bool:
        """Whether all jobs are this user's to see and change."""
        level = self.admin_level
        return self.is_slurm_user or (not isinstance(level, Unknown) and level[0] in _OPERATORS)

    def setting(self, name: str) -> str | Unknown:
        """A value of slurm.conf as slurmctld has it; Unknown where this Slurm shows none of that name."""
        return self.settings.get(name, Unknown(f"scontrol show config names no {name}"))

    def number(self, name: str) -> float | Unknown:
        """The number that a value begins with (``30 sec``)."""
        text = self.setting(name)
        if isinstance(text, Unknown):
            return text
        match = re.match(r"\d+(?:\.\d+)?", text)
        return float(match[0]) if match else Unknown(f"{name} = {text!r} is no number")

    def options(self, name: str) -> dict[str, str] | Unknown:
        """A comma list such as SchedulerParameters as {word: value, "" where it has none}."""
        text = self.setting(name)
        if isinstance(text, Unknown):
            return text
        pairs = [part.partition("=") for part in text.split(",") if part]
        return {key.strip().lower(): value.strip() for key, _, value in pairs}

    @property
    def is_slurm_user(self) -> bool:
        """Whether Slurm obeys this user in everything: root, and SlurmUser."""
        return _is_slurm_user(self.settings, self.uid)


def may_change_all(backend: CliBackend, uid: int) -> bool | Unknown:
    """Whether all jobs are this user's to change."""
    try:
        settings = _settings(backend.config_text())
    except SlurmError as error:
        return Unknown(str(error))
    if _is_slurm_user(settings, uid):
        return True
    level = _level(backend, settings, name_of(uid))
    return level if isinstance(level, Unknown) else level[0] in _OPERATORS


def _is_slurm_user(settings: Mapping[str, str], uid: int) -> bool:
    return uid == 0 or settings.get("SlurmUser", "").endswith(f"({uid})")


def survey(backend: CliBackend, say: Callable[[str], object] = str) -> Survey | Unknown:
    """Ask a Slurm everything, a handful of reads. Unknown, after the first question, where it does not answer.
    ``say`` is told whom it asks next, where that may take long."""
    missing = tuple(name for name in (*COMMANDS, *_EXTRA) if shutil.which(name) is None)
    try:
        settings = _settings(backend.config_text())
        identity = backend.identity()
    except SlurmError as error:
        return Unknown(str(error))
    uid = os.geteuid()
    say("slurmctld")
    state = _tried(backend.read)
    if settings.get("AccountingStorageType") == "accounting_storage/slurmdbd":
        say("slurmdbd")
    level = _level(backend, settings, name_of(uid))
    return Survey(
        user=name_of(uid),
        uid=uid,
        version=_version(settings),
        identity=identity,
        settings=settings,
        daemons=_tried(backend.daemons),
        state=state,
        clock_ahead_s=_tried(lambda: _clock(backend)),
        latest_start=_tried(lambda: _latest_start(backend.ask("scontrol", "-o", "show", "node"))),
        admin_level=level,
        accounting=_accounting(backend, settings, level),
        missing=missing,
        noise=tuple(sorted(backend.noise("scontrol"))),
    )


def _tried(question: Callable[[], _T | Unknown]) -> _T | Unknown:
    try:
        return question()
    except SlurmError as error:
        return Unknown(str(error))


def name_of(uid: int) -> str:
    """A user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_user(name: str) -> bool:
    """Whether this host knows a user of that name."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _settings(text: str) -> dict[str, str]:
    """Names to values; of a name that stands twice (some sections of plug-ins repeat one) the first counts."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^(\S+)\s*= *(.*?)\s*$", text, re.MULTILINE):
        found.setdefault(name, "" if value in ("(null)", "(null type)") else value)
    return found


def _version(settings: Mapping[str, str]) -> tuple[int, ...] | Unknown:
    text = settings.get("SLURM_VERSION", "")
    match = re.match(r"\d+(?:\.\d+)+", text)
    return tuple(int(n) for n in match[0].split(".")) if match else Unknown(f"SLURM_VERSION is {text!r}")


def _clock(backend: CliBackend) -> tuple[float, float] | Unknown:
    return backend.clock_ahead_s() or Unknown("sdiag shows no time")


def _latest_start(text: str) -> tuple[float, str] | Unknown:
    found = re.findall(r"^NodeName=(\S+).* SlurmdStartTime=(\d+)", text, re.MULTILINE)
    return (
        max((float(moment), node) for node, moment in found) if found else Unknown("no node says when it was started")
    )


def _level(backend: CliBackend, settings: Mapping[str, str], user: str) -> tuple[str, tuple[str, ...]] | Unknown:
    """The rights of ``user`` in Slurm's database, if there is one; without it nobody has any but SlurmUser and root."""
    if settings.get("AccountingStorageType") != "accounting_storage/slurmdbd":
        return "None", ()
    try:
        text = backend.ask("sacctmgr", "-n", "-P", "show", "user", user, "withcoord", "format=User,AdminLevel,Coord")
    except SlurmError as error:
        return Unknown(str(error), isinstance(error, SlurmUnavailable))
    if not text.strip():
        return "", ()
    words = text.splitlines()[0].split("|")
    if len(words) < 3 or words[0] != user:
        return Unknown(f"sacctmgr show user says {text.splitlines()[0]!r}")
    return words[1] or "None", tuple(name for name in words[2].split(",") if name)


def _accounting(
    backend: CliBackend, settings: Mapping[str, str], level: tuple[str, tuple[str, ...]] | Unknown
) -> bool | Unknown:
    """A slurmdbd that has just not answered, which may take long, is not asked again."""
    if settings.get("AccountingStorageType", "") in ("", "accounting_storage/none"):
        return False
    if isinstance(level, Unknown) and level.away:
        return level
    try:
        backend.accounting("now")
    except SlurmError as error:
        return Unknown(str(error))
    return True
