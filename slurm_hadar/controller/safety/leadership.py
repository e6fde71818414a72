"""Leadership: of several controllers, one per slurmctld host, the one whose slurmctld acts may act; others stand by. So
do those for some users beside one for everybody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from slurm_hadar.errors import SlurmError
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.here import daemons_here
from slurm_hadar.slurm.state import Daemon

__all__ = ["Leadership"]

log = logging.getLogger(__name__)


class Leadership:
    """Whether this host is the one that acts, by ``scontrol ping``.

    A slurmctld that only stands by answers that, too, and a slow primary does not. So whether Slurm has been taken over
    is told by who answers anything else: a slurmctld that stands by refuses, and clients do not come to it while a
    primary that hangs keeps their connections. One round is observed first, which Slurm must answer (a slurmctld that
    has just taken over does not know yet which GPUs are in use), and ping is asked again before the first writes.

    With one slurmctld everybody may act, and nothing is asked any more. So may a host that is none of several
    slurmctld's hosts: who runs a controller there runs one only.

    Parameters
    ----------
    backend: whom to ask. ha: as in the configuration. host: this host's name, if not the system's. overruled: who of
    this host steers the same jobs and goes before this controller, in words, or empty.
    """

    def __init__(
        self,
        backend: Backend,
        ha: Literal["primary", "any"],
        host: str = "",
        overruled: Callable[[], str] = str,
    ) -> None:
        self._backend = backend
        self._ha = ha
        self._overruled = overruled
        self._host = host
        self._several: bool | None = None
        self._last: str | None = None
        self._outside = False
        self._mine = frozenset[str]()  # names of slurmctld's hosts that were this one, whatever resolves them later
        self._over = ""
        self._taken: Literal["no", "seen", "answered", "sure"] = "answered"  # who starts has not seen another one act

    def reset(self, ha: Literal["primary", "any"]) -> None:
        """The configuration was read again: ask anew, also how many there are, and which is this host's."""
        self._ha, self._several, self._mine = ha, None, frozenset()

    @property
    def standing_by(self) -> bool:
        """What :meth:`standby` came to last."""
        return bool(self._last)

    @property
    def several(self) -> bool:
        """Whether there is more than one slurmctld, as far as is known."""
        return bool(self._several)

    def may_be_elsewhere(self) -> bool:
        """Whether another host may be the one that jobs report to, as far as can be told before the first round."""
        try:
            return bool(self.standby())
        except SlurmError:
            return True

    def standby(self) -> str:
        """Why this host may not act now; empty if it may. Raises SlurmError if Slurm does not say."""
        if other := self._overruled():
            why = f"standby: another controller on this host steers everybody's jobs ({other})"
            return self._tell_change(why, "controller.users", "nobody steers everybody's jobs now")
        if self._ha == "any" or self._several is False:
            return self._tell_change("")
        daemons = self._backend.daemons()
        self._several = len(daemons) > 1
        here = self._here(daemons) if self._several else ()
        if not here:
            self._tell_outside([d.host for d in daemons] if self._several else [])
            return self._tell_change("")
        acting = next((d for d in daemons if d.up), None)
        if acting is None:
            return self._tell_change("no slurmctld is up")
        if acting in here:
            if self._taken in ("no", "seen"):
                self._taken = "seen"
                return self._tell_change(
                    "standby: this host's slurmctld seems to act now; to be believed once Slurm has answered a round"
                )
            return self._tell_change("")
        self._taken = "no"
        return self._tell_change(
            f"standby: slurmctld acts on {acting.host} ({acting.role}), and this host is {here[0].role}"
        )

    def _here(self, daemons: Sequence[Daemon]) -> tuple[Daemon, ...]:
        known = tuple(d for d in daemons if d.host in self._mine)
        here = known or daemons_here(daemons, self._host)
        self._mine = frozenset(d.host for d in here)
        return here

    def _tell_outside(self, hosts: Sequence[str]) -> None:
        """Once: two of those would act against each other."""
        if hosts and not self._outside:
            log.warning(
                "this host is none of those of slurmctld (%s): this controller acts whichever of them does, "
                "so it must be the only one",
                ", ".join(hosts),
            )
        self._outside = self._outside or bool(hosts)

    def answered(self) -> None:
        """Slurm has answered what this round asked."""
        if self._taken == "seen":
            self._taken = "answered"

    def sure(self) -> bool:
        """To be asked before a round's first write: whether this host acts still. It is looked at again where this
        round is the first to write; later ones go by :meth:`standby`. Raises SlurmError if Slurm does not say."""
        if self._several and self._taken == "answered" and not self.standby():
            self._taken = "sure"
        return not self.standing_by

    def _tell_change(
        self, standby: str, option: str = "controller.ha", over: str = "this host's slurmctld acts now"
    ) -> str:
        """Say in the log when it changes: by which option, and, when it is over, why."""
        if standby != self._last:
            if standby:
                log.warning("%s; rounds are observed only (%s)", standby, option, extra={"event": "standby"})
            elif self._last:
                log.warning("taking over: %s", self._over, extra={"event": "takeover"})
        self._last, self._over = standby, over
        return standby
