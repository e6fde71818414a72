"""The controller's view of this very moment, for reading only: nothing is written, to Slurm or to the journal."""

from __future__ import annotations

from dataclasses import replace

from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.answers.expectation import Peek
from slurm_hadar.controller.journal import journal_copy
from slurm_hadar.controller.journal.memory import memory_of, owner_of
from slurm_hadar.controller.observe.graphs import GraphBook
from slurm_hadar.controller.observe.observer import Observer
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.controller.observe.sources import PAST, Sources
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.controller.prediction.forecasts import Forecaster
from slurm_hadar.controller.state_dir import JOURNAL, PREDICTOR, chosen_state_dir
from slurm_hadar.controller.steering.time_limits import overtime
from slurm_hadar.policies import registry
from slurm_hadar.predict.store import VersionStore
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.profiles import ProfileStore
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import reference

__all__ = ["peek"]


def peek(backend: Backend, config: Config) -> Peek:
    """Look at Slurm as the controller with this configuration would, with what its journal remembers.

    What jobs have reported since its last round is not known here. Raises SlurmError, StoreError or ConfigError.
    """
    directory = chosen_state_dir(config)
    policy = registry.get(config.policy.name, **config.policy.params)
    with journal_copy(directory / JOURNAL, missing_ok=True) as journal:
        store = ThroughputStore(journal.connection)
        forecaster = Forecaster(VersionStore(directory / PREDICTOR)) if config.predict.enabled else None
        graphs = GraphBook(config.network)
        usage = UsageBook(journal, config.fairness.half_life_h * 3600.0)
        estimator = Estimator(reference(), store)
        sources = Sources(ReportBook(), estimator, journal.load_jobs(), usage, graphs, forecaster)
        sources.profiles = ProfileStore(journal.connection)
        sources.recall = journal.job
        sources.past.extend(journal.last_ended(PAST))
        view = SlurmView.of(backend.read(), config.gpus.memory_gb)
        graphs.survey_if_named(backend, view)
        seen = Observer(config, sources).observe(view, acting_only=config.boldest is Mode.ACT)
        memory = memory_of(journal, owner_of(policy.name, config.policy.params))
    late = {
        job.job_id: found
        for job in seen.snapshot.jobs
        if (found := overtime(job, seen.comments[job.job_id], seen.records[job.job_id], seen.snapshot.time))
    }
    return Peek(replace(seen.snapshot, memory=memory), policy, seen.stays, late)
