"""The configuration by which the controller goes, where it was told of it on its command line."""

from __future__ import annotations

from slurm_hadar.config import Config, with_given
from slurm_hadar.controller.journal import Reader, ReadOnlyJournal
from slurm_hadar.controller.journal.memory import GIVEN, memory_of
from slurm_hadar.controller.state_dir import JOURNAL, chosen_state_dir
from slurm_hadar.errors import ConfigError, StoreError

__all__ = ["as_given", "as_told"]


def as_given(config: Config) -> Config:
    """The configuration as the controller has it, where that can be known."""
    try:
        with ReadOnlyJournal(chosen_state_dir(config) / JOURNAL) as journal:
            return as_told(config, journal)
    except StoreError:  # there is none
        return config


def as_told(config: Config, journal: Reader) -> Config:
    """The same by the controller's journal."""
    try:
        return with_given(config, memory_of(journal, GIVEN))
    except (StoreError, ConfigError):  # it is of another version
        return config
