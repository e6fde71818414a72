"""What jobs are expected to be that do not say it themselves: the stored predictor, asked once per job and version."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, fields

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.prediction.past_jobs import submission_of
from slurm_hadar.errors import PredictionError, SlurmError
from slurm_hadar.predict.features import Past
from slurm_hadar.predict.store import Stored, VersionStore
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.table import reference

__all__ = ["Forecast", "Forecaster", "in_words"]

log = logging.getLogger(__name__)
#: So many jobs are asked about in one round, each in about a millisecond; the rest in those that follow.
MOST_QUESTIONS = 500


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one version expects of a job, all in seconds that it takes alone on the fastest GPU type: in steps it would
    change whenever the job's speed is measured anew.

    ``expected_s`` is what policies are told. Four in five such jobs lie between ``low_s`` and ``high_s``; both are
    ``expected_s`` where nothing is known about the error. ``outlives`` as in
    :class:`slurm_hadar.predict.predictors.Prediction`; ``runs`` is how often the group had ended before. ``gpu_types``
    are those among which the fastest was looked for.
    """

    version: str
    expected_s: float
    low_s: float
    high_s: float
    outlives: float
    runs: int
    source: str
    gpu_types: tuple[str, ...]

    @classmethod
    def of(cls, record: JobRecord) -> Forecast | None:
        """What is remembered of a job; None if it was never asked about."""
        if record.forecast.keys() != _FIELDS:
            return None
        return cls(**{**record.forecast, "gpu_types": tuple(record.forecast["gpu_types"])})


_FIELDS = {f.name for f in fields(Forecast)}


def in_words(found: Forecast) -> str:
    """One line for the job's history."""
    runs = "1 earlier run" if found.runs == 1 else f"{found.runs or 'no'} earlier runs"
    between = f" (four in five such jobs {found.low_s / 3600:.3g} to {found.high_s / 3600:.3g} h)"
    return (
        f"{found.expected_s / 3600:.3g} h alone on the fastest GPUs{between if found.high_s > found.low_s else ''}, "
        f"from {runs} of its kind, by {found.source}"
    )


class Forecaster:
    """Asks the newest sound version. Answers are kept in the records, so that a job's size stays as it is until there
    is another version, over restarts of the controller too.

    What cannot be read is said once and passed over: an older version answers then, or nobody. scikit-learn is not
    needed to ask.
    """

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self._estimator = Estimator(reference())  # of speeds as they were estimated when the version was made
        self._named: str | None = None
        self._stored: Stored | None = None
        self._past = Past()
        self._told: set[str] = set()
        self._left = 0

    def refresh(self) -> None:
        """A round begins: take up a version that is new."""
        self._left = MOST_QUESTIONS
        try:
            named = self._store.current()
        except PredictionError as error:
            self._warn(str(error))
            named = None
        if named is None or named == self._named:
            return
        self._named = named
        found = self._newest_sound(named)
        if found is not None and (self._stored is None or found.version.name != self._stored.version.name):
            self._stored, self._past = found, Past(found.history)
            log.info(
                "jobs that do not state their steps are predicted by version %s (%s, %d ended jobs)",
                found.version.name,
                found.version.predictor,
                found.version.jobs,
            )

    def of(self, job: SlurmJob, record: JobRecord, now: float) -> Forecast | None:
        """What is expected of a job with GPUs; None as long as there is nothing to go by."""
        known = Forecast.of(record)
        if self._stored is None or self._left <= 0 or (known and known.version == self._stored.version.name):
            return known
        self._left -= 1
        found = self._ask(self._stored, job, record.arrival or now)
        if found is None:
            return known
        record.forecast = asdict(found)
        return found

    def _ask(self, stored: Stored, job: SlurmJob, submit: float) -> Forecast | None:
        try:
            asked = submission_of(job, self._estimator, stored.version.gpu_types, submit)
        except SlurmError:  # it asks for no GPUs
            return None
        found = stored.predictor.predict(asked, self._past)
        if found is None:
            return None
        alone = found.scaled(1 / asked.steps_per_s)
        return Forecast(
            stored.version.name,
            alone.steps,
            alone.low,
            alone.high,
            alone.outlives,
            alone.runs,
            alone.source,
            stored.version.gpu_types,
        )

    def _newest_sound(self, named: str) -> Stored | None:
        older: list[str] = []
        try:
            older = [name for name in self._store.names()[::-1] if int(name) < int(named)]
        except PredictionError as error:
            self._warn(str(error))
        for name in (named, *older):
            try:
                return self._store.load(name)
            except PredictionError as error:
                self._warn(str(error))
        return None

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log.warning("predictor: %s", text)
