"""The controller's view of this very moment, for who only looks: nothing is written, to Slurm or to the journal."""

from __future__ import annotations

from dataclasses import replace

from slurm_hadar.comment import read
from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.answers.expectation import Peek
from slurm_hadar.controller.journal import journal_copy
from slurm_hadar.controller.journal.recorder import memory_of, owner_of
from slurm_hadar.controller.observe.job_graphs import GraphBook
from slurm_hadar.controller.observe.observer import Observer
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.controller.prediction.forecasts import Forecaster
from slurm_hadar.controller.setup import JOURNAL, PREDICTOR, chosen_state_dir
from slurm_hadar.controller.steering.time_limits import overtime
from slurm_hadar.policies import registry
from slurm_hadar.predict.store import VersionStore
from slurm_hadar.slurm.base import Backend
from slurm_hadar.throughput.estimator import Estimator
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
        observer = Observer(
            config, ReportBook(), Estimator(reference(), store), journal.load_jobs(),
            UsageBook(journal, config.fairness.half_life_h * 3600.0), forecaster, graphs,
        )  # fmt: skip
        state = backend.read()
        graphs.survey_if_named(backend, state)
        seen = observer.observe(state, acting_only=config.boldest is Mode.ACT)
        memory = memory_of(journal, owner_of(policy.name, config.policy.params))
    late = {
        job.job_id: found for job in seen.snapshot.jobs
        if (found := overtime(job, read(seen.raw[job.job_id].comment)[0], seen.records[job.job_id], state.time))
    }  # fmt: skip
    return Peek(replace(seen.snapshot, memory=memory), policy, seen.stays, late)
