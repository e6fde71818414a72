"""The server's word to the controller: how many workers it wants, by the agent of its job (``hadar-srun``)."""

from __future__ import annotations

from collections.abc import Callable

from slurm_hadar.runtime.inject import _hadar_progress as shared
from slurm_hadar.serving.simulation.scaling import Bounds, Scaling, Wish

__all__ = ["WantedWorkers"]


class WantedWorkers:
    """Written where the agent looks. Of a server whose number of workers is fixed, and where there is no agent or no
    room for its page, nobody is told.

    Parameters
    ----------
    have: workers that there is room for in this run of the job.
    memory_s: how long what was wanted counts.
    tell: given a line where it cannot be written.
    """

    def __init__(self, bounds: Bounds, have: int, memory_s: float, tell: Callable[[str], None]) -> None:
        self._have, self._memory_s = have, memory_s
        self._page: shared.Page | None = None
        self._wish: Wish | None = None
        if bounds.least == bounds.most:
            return
        try:
            self._page = shared.open_page(0, 1)
        except OSError as error:
            tell(f"the controller cannot be told how many workers are wanted: {error.strerror}")
        if self._page is not None:
            self._page.words[shared.STEPS] = -1  # it makes none

    @property
    def has_agent(self) -> bool:
        """Whether there is an agent."""
        return self._page is not None

    @property
    def wanted(self) -> int | None:
        """What was said last."""
        return None if self._wish is None else self._wish.wanted

    def ready(self, now_s: float, start_s: float) -> None:
        """The server can answer, ``start_s`` after it was started; so long nobody would be answered at a restart."""
        if self._page is not None:
            self._wish = Wish(self._have, start_s, self._memory_s, now_s)
            self._page.words[shared.WANTED] = self._wish.wanted

    def look(self, found: Scaling, now_s: float) -> None:
        """What is expected of other numbers of workers now."""
        if self._page is not None and self._wish is not None:
            self._wish.look(found, now_s)
            self._page.words[shared.WANTED] = self._wish.wanted
