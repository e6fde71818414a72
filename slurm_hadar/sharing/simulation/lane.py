"""The turns of one lane, run forward by whole stretches of time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slurm_hadar.sharing.simulation.stretch import Run, changes, start_ns, starts_within
from slurm_hadar.sharing.turns import STEADY, Policy, Standing, rank, stride

__all__ = ["LaneClock", "Session"]


@dataclass(slots=True, eq=False)
class Session:
    """A job on the GPU: ``left`` iterations are still to start, each of ``iteration_ns`` of GPU time."""

    name: str
    iteration_ns: int
    left: int
    standing: Standing


class LaneClock:
    """The sessions of one lane, and the iteration under way. All times are GPU time of this lane, in nanoseconds: how
    much of it passes in a second is decided where lanes run beside each other."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._sessions: list[Session] = []
        self._last: Session | None = None  # who had the last turn, or has it
        self._under_way_ns = 0  # left of the iteration under way
        self.switches = 0

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Those who have not ended."""
        return tuple(self._sessions)

    def join(self, session: Session) -> None:
        """A session joins: its first turn comes at a boundary. It is charged as the least of those who are there."""
        session.standing.passed = min((s.standing.passed for s in self._sessions), default=0)
        self._sessions.append(session)

    def next_end_ns(self) -> int:
        """How long until the first session ends if nobody comes."""
        if self._under_way_ns and self._last is not None and not self._last.left:
            return self._under_way_ns
        if self._policy in STEADY:
            first = self._first()
            return self._under_way_ns + first.left * first.iteration_ns
        runs = self._runs()  # turns go by what was passed: whose last has the least of it ends first
        run = min(runs, key=lambda r: (r.passed + (r.left - 1) * r.stride, r.order))
        return self._under_way_ns + start_ns(runs, run, run.left - 1) + run.iteration_ns

    def advance(self, work_ns: int) -> dict[str, int]:
        """Let ``work_ns`` pass, at most :meth:`next_end_ns`. For each session that was given turns: after how long the
        first of them began."""
        gone = min(work_ns, self._under_way_ns)
        self._under_way_ns -= gone
        left_ns = work_ns - gone
        if not left_ns:
            return {}
        began = self._steady(left_ns) if self._policy in STEADY else self._merged(left_ns)
        return {name: gone + at for name, at in began.items()}

    def take_ended(self) -> list[Session]:
        """The sessions whose last iteration is done, which leave the lane: one at the most."""
        busy = self._last if self._under_way_ns else None
        ended = [s for s in self._sessions if not s.left and s is not busy]
        self._sessions = [s for s in self._sessions if s not in ended]
        return ended

    def _first(self) -> Session:
        return min(self._sessions, key=lambda s: rank(self._policy, s.standing))

    def _steady(self, work_ns: int) -> dict[str, int]:
        first = self._first()
        self._start(first, -(-work_ns // first.iteration_ns))
        self._under_way_ns = -work_ns % first.iteration_ns
        return {first.name: 0}

    def _merged(self, work_ns: int) -> dict[str, int]:
        runs, sessions = self._runs(), self._sessions
        counts, level, over_ns = starts_within(runs, work_ns)
        began = {s.name: start_ns(runs, run, 0) for s, run, count in zip(sessions, runs, counts, strict=True) if count}
        switches, first, last = changes(runs, counts)
        if first is not None and last is not None:
            self.switches += switches + (self._last not in (None, sessions[first]))
            self._last = sessions[last]
        for session, run, count in zip(sessions, runs, counts, strict=True):
            session.left -= count
            session.standing.passed += count * run.stride
        for session, run in sorted(zip(sessions, runs, strict=True), key=lambda pair: pair[1].order):
            if over_ns > 0 and session.left and session.standing.passed == level:
                began.setdefault(session.name, work_ns - over_ns)
                self._start(session, 1)
                session.standing.passed += run.stride
                over_ns -= session.iteration_ns
        self._under_way_ns = -over_ns
        return began

    def _start(self, session: Session, iterations: int) -> None:
        self.switches += self._last not in (None, session)
        self._last = session
        session.left -= iterations
        session.standing.left_ns -= iterations * session.iteration_ns

    def _runs(self) -> list[Run]:
        members = Counter(s.standing.group for s in self._sessions)
        return [
            Run(s.standing.order, s.iteration_ns, s.left, s.standing.passed,
                stride(self._policy, s.iteration_ns, s.standing, members[s.standing.group]))
            for s in self._sessions
        ]  # fmt: skip
