"""Wire a controller together from a configuration: the one place that knows all its parts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.channel_file import announce, leave_network
from slurm_hadar.controller.agents.notes import Seal, load_key
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.callbacks import LoopCallbacks
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.loop import Controller, RoundResult
from slurm_hadar.controller.observe.graphs import network_of
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.prediction.forecasts import Forecaster
from slurm_hadar.controller.prediction.training import Trainer
from slurm_hadar.controller.record.recorder import JournalRecorder
from slurm_hadar.controller.safety.leadership import Leadership
from slurm_hadar.controller.safety.lock import ScopeLock
from slurm_hadar.controller.slurm_cluster import SlurmCluster
from slurm_hadar.controller.state_dir import JOURNAL, PREDICTOR, private_cluster, state_dir
from slurm_hadar.messages import CHANNEL_FILE, SYSTEM_CHANNEL, ChannelInfo
from slurm_hadar.policies import registry
from slurm_hadar.policies.base import Policy
from slurm_hadar.predict.store import VersionStore
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.backend.select import choose
from slurm_hadar.slurm.backend.watched import WatchedBackend
from slurm_hadar.slurm.survey import may_change_all

__all__ = ["Assembly", "assemble", "channel_address", "channel_file", "steer"]


@dataclass
class Assembly:
    """A controller ready to run, and what must be closed after it. ``notes`` are lines the user should see."""

    controller: Controller[Observation]
    parts: Parts
    trainer: Trainer
    leadership: Leadership
    directory: Path
    notes: list[str]
    _stack: ExitStack

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def assemble(
    config: Config,
    on_round: Callable[[RoundResult[Observation]], None] | None = None,
    callbacks: LoopCallbacks | None = None,
    once: bool = False,
) -> Assembly:
    """Build everything; ``callbacks`` are told of what it does. ``once``: for one round only.

    Raises the HadarError of whatever cannot be had; nothing stays open then.
    """
    notes: list[str] = []
    policy = registry.get(config.policy.name, **config.policy.params)
    with ExitStack() as stack:
        backend: Backend = choose(config.slurm.backend, config.slurm.timeout_s, config.slurm.retries)
        if callbacks is not None:
            backend = WatchedBackend(backend, callbacks)
        stack.callback(backend.close)
        directory = state_dir(config)
        lock = ScopeLock(directory, backend.identity(), config.controller.users, lambda uid: _may_steer(config, uid))
        stack.callback(lock.release)
        notes += lock.ignored
        journal = Journal(directory / JOURNAL)
        stack.callback(journal.close)
        if journal.moved_aside:
            notes.append(f"the journal was broken and moved to {journal.moved_aside}; a new one is begun")
        leadership = Leadership(backend, config.controller.ha, overruled=lock.overruled)
        trainer = Trainer(config.predict, directory, directory / PREDICTOR, journal)
        parts = Parts(
            backend,
            journal,
            forecaster=Forecaster(VersionStore(directory / PREDICTOR)),
            trainer=trainer,
            callbacks=callbacks or LoopCallbacks(),
            leadership=leadership,
            seal=Seal(backend.identity(), load_key(directory)),
            once=once,
        )
        parts.channel = _channel(config, directory, parts.book, leadership)
        if parts.channel is not None:
            parts.channel_file = parts.channel.told
            stack.callback(parts.channel.close)
        controller = steer(policy, config, parts, on_round)
        return Assembly(controller, parts, trainer, leadership, directory, notes, stack.pop_all())


def _may_steer(config: Config, uid: int) -> bool:
    """Whether an account's controller may change all jobs. One that may, and is not known to, would be the worse."""
    answer = may_change_all(CliBackend(config.slurm.timeout_s, config.slurm.retries), uid)
    return answer if isinstance(answer, bool) else True


def steer(
    policy: Policy,
    config: Config,
    parts: Parts,
    on_round: Callable[[RoundResult[Observation]], None] | None = None,
) -> Controller[Observation]:
    """A controller of a live Slurm, from its parts. ``on_round`` is called after each round."""
    params = config.policy.params if config.policy.name == policy.name else {}
    keep_s = config.controller.keep_days * 86400
    recorder = JournalRecorder(parts.journal, policy.name, params, keep_s, parts.best_effort)
    return Controller(SlurmCluster(config, parts), policy, config, recorder, on_round, parts.callbacks)


def _channel(config: Config, directory: Path, book: ReportBook, leadership: Leadership) -> Channel | None:
    """Listen for reports wherever jobs are told to report; in mode observe too, since speeds are worth knowing.
    Jobs are told nothing yet where another host's controller may be theirs."""
    settings = config.channel
    file = channel_file(config, directory)
    leave_network(file, network_of(config.network))
    quiet = leadership.may_be_elsewhere()
    if not settings.enabled:
        if not quiet:
            announce(file, ChannelInfo("", ""))  # jobs then write spool files
        return None
    bind, host = channel_address(config)
    # who acts of several hosts, or steers everybody's jobs, takes it from those who stand by and would answer
    shares = bool(config.controller.users) and not leadership.several
    return Channel(book, directory, bind, host, file, settings.max_message_bytes, quiet, shares)


def channel_address(config: Config) -> tuple[str, str]:
    """Where the channel listens, and the name under which jobs are told to find it; inside a private cluster both stay
    on this machine."""
    settings, private = config.channel, private_cluster()
    host = settings.host or ("127.0.0.1" if private else _host())
    return (settings.bind.replace("tcp://*:", "tcp://127.0.0.1:") if private else settings.bind), host


def channel_file(config: Config, directory: Path) -> Path:
    """Where the configuration says; else beside slurm.conf, where every job finds it; else in /etc/slurm-hadar; else
    with the state, and jobs need HADAR_CHANNEL."""
    if config.channel.file is not None:
        return config.channel.file
    conf = os.environ.get("SLURM_CONF")
    beside = [Path(conf).parent / CHANNEL_FILE] if conf else []
    for candidate in (*beside, SYSTEM_CHANNEL):
        if os.access(candidate.parent, os.W_OK):
            return candidate
    return directory / CHANNEL_FILE


def _host() -> str:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name
