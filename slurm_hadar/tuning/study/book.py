"""The study: Optuna's, with its samplers, pruners and storage as they are. The tuner alone writes it."""

from __future__ import annotations

import contextlib
import math
import random
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from slurm_hadar.errors import ConfigError, StoreError
from slurm_hadar.tuning.grid import contradiction
from slurm_hadar.tuning.study.record import TRIALS, is_running, sqlite_file

if TYPE_CHECKING:
    import optuna

__all__ = ["Algorithm", "Book", "End", "Report", "Sampler", "finite", "opening", "pruner_of", "sampler_of"]

RUN = "hadar:run"  # a study's attribute: how it is run
IDENTITY = "hadar:identity"  # and what tells it from any other of the same name
PLACE = "hadar:folder"  # and where its checkpoints are
_DELETED = "Record does not exist"  # Optuna's words
_LOCK_S = 5.0
_PATIENCE_S = 120.0
_T = TypeVar("_T")


class Algorithm(StrEnum):
    """Who proposes trials, and who of them goes on. Where it says Optuna, that is Optuna's, as it is."""

    RANDOM = "random"
    GRID = "grid"
    TPE = "tpe"
    ASHA = "asha"
    SHA = "sha"
    HYPERBAND = "hyperband"
    PBT = "pbt"


class Sampler(StrEnum):
    """Who draws the trials of an algorithm that says only who goes on: Optuna's samplers."""

    RANDOM = "random"
    TPE = "tpe"


class End(StrEnum):
    """How a trial has ended: Optuna's states of finished trials."""

    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Report:
    """An intermediate value, at a step of the objective's own count."""

    step: int
    value: float


def sampler_of(
    algorithm: Algorithm, sampler: Sampler, seed: int | None, trials: int = 0
) -> optuna.samplers.BaseSampler:
    """Optuna's sampler for an algorithm; ``sampler`` for those that leave it open. TPE ranks a trial that was dropped
    at a rung by how far it came, then by its last report. ``trials``: how many the study has already, whose draws are
    not made again."""
    from optuna import samplers

    from slurm_hadar.tuning.study.samplers import CombinationSampler, RepeatableSampler

    further = seed if seed is None or not trials else random.Random(f"{seed} {trials}").getrandbits(32)
    if algorithm is Algorithm.GRID:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is young
            return CombinationSampler(seed=further)
    if algorithm is Algorithm.TPE or sampler is Sampler.TPE:
        return samplers.TPESampler(seed=further, constant_liar=True)
    return samplers.RandomSampler() if seed is None else RepeatableSampler(seed)


def pruner_of(algorithm: Algorithm, eta: int, first_rung: int) -> optuna.pruners.BasePruner:
    """Optuna's pruner for an algorithm; rungs at which trials wait for each other are the tuner's."""
    from optuna import pruners

    if algorithm is Algorithm.ASHA:
        return pruners.SuccessiveHalvingPruner(min_resource=first_rung, reduction_factor=eta)
    return pruners.NopPruner()


class Book:
    """An Optuna study, opened to be run. ``say`` is told where it has to wait for the storage.

    Raises StoreError where the storage cannot be used, ConfigError where the study is another one.
    """

    def __init__(self, study: optuna.Study, say: Callable[[str], None]) -> None:
        self.study, self._say = study, say
        self._trials: dict[int, optuna.Trial] = {}
        self._steps: dict[int, set[int]] = {}
        import optuna

        self.maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
        self.impatient = False  # it has been waited for in vain

    @staticmethod
    def is_there(url: str, name: str, say: Callable[[str], None]) -> bool:
        """Whether the storage has a study of this name; a storage that is not there is made."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with opening(url):
            return name in _patiently(lambda: optuna.get_all_study_names(_storage(url)), say, _PATIENCE_S, url)

    @classmethod
    def open(
        cls, url: str, name: str, direction: Literal["minimize", "maximize"], sampler: Any, pruner: Any,
        say: Callable[[str], None],
    ) -> Book:  # fmt: skip
        """The study of this name, made if it is not there."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)

        def opened() -> optuna.Study:
            return optuna.create_study(
                storage=_storage(url), sampler=sampler, pruner=pruner, study_name=name, direction=direction,
                load_if_exists=True,
            )  # fmt: skip

        with opening(url):
            study = _patiently(opened, say, _PATIENCE_S, url)
        if len(study.directions) != 1:
            raise ConfigError(f"study {name} of {url} has {len(study.directions)} objectives: only one can be tuned")
        made = cls(study, say)
        if made.maximize != (direction == "maximize"):
            raise ConfigError(
                f"study {name} of {url} is there already, and is not to {direction}: take another --study"
            )
        return made

    def run_options(self) -> dict[str, Any] | None:
        """How the study was begun; None if it is new, or not of ours."""
        return self._patiently(lambda: self.study.user_attrs.get(RUN))

    def identity(self) -> str:
        """What tells the study from any other of its name, for as long as it is there."""
        known = self._patiently(lambda: self.study.user_attrs.get(IDENTITY))
        if not isinstance(known, str):
            known = uuid.uuid4().hex
            self._patiently(lambda: self.study.set_user_attr(IDENTITY, known))
        return known

    def settle(self, folder: Path, url: str) -> None:
        """The checkpoints of its trials are there from now on: beside the storage that is a file, else where it was
        begun. Raises ConfigError where they are elsewhere: here trials would begin anew, or run twice, by two tuners.
        """
        if sqlite_file(url) is not None:
            return
        known = self._patiently(lambda: self.study.user_attrs.get(PLACE))
        if known == str(folder):
            return
        if isinstance(known, str) and ((Path(known) / TRIALS).exists() or is_running(Path(known))):
            raise ConfigError(
                f"study {self.study.study_name} has its checkpoints in {known}: run this where it was begun, in "
                f"{Path(known).parents[1]}, or move all that is there to {folder}"
            )
        self._patiently(lambda: self.study.set_user_attr(PLACE, str(folder)))

    def note_run_options(self, options: dict[str, Any]) -> None:
        """Keep what :meth:`run_options` shall give."""
        self._patiently(lambda: self.study.set_user_attr(RUN, options))

    def ask(self, attributes: dict[str, Any] | None = None, parameters: dict[str, Any] | None = None) -> int:
        """A new trial's number; ``parameters`` that are given are not drawn. With parameters it is there with all of
        its attributes, or not at all."""
        if parameters is not None:
            return self._patiently(lambda: self._made(attributes or {}, {"fixed_params": parameters}))
        trial = self._patiently(self.study.ask)
        self._trials[trial.number] = trial
        for key, value in (attributes or {}).items():
            self.attribute(trial.number, key, value)
        return trial.number

    def ask_many(self, count: int, attributes: dict[str, Any]) -> list[int]:
        """As :meth:`ask`, for trials that start together: each is one write, where asking takes three."""
        return [self._patiently(lambda: self._made(attributes, {})) for _ in range(count)]

    def _made(self, attributes: dict[str, Any], system: dict[str, Any]) -> int:
        import optuna

        storage, study = self.study._storage, self.study._study_id  # noqa: SLF001 (Optuna has no other name)
        running = optuna.trial.TrialState.RUNNING
        template = optuna.trial.create_trial(state=running, user_attrs=attributes, system_attrs=system)
        trial = optuna.Trial(self.study, storage.create_new_trial(study, template_trial=template))
        self._trials[trial.number] = trial
        return trial.number

    def take_up(self, trial: optuna.trial.FrozenTrial) -> None:
        """A trial that an earlier tuner has left."""
        import optuna

        def taken() -> None:
            if trial.state == optuna.trial.TrialState.WAITING:
                self._set_state(trial, optuna.trial.TrialState.RUNNING)
            self._trials[trial.number] = optuna.Trial(self.study, trial._trial_id)  # noqa: SLF001 (Optuna has no other name)

        self._patiently(taken)
        self._steps[trial.number] = set(trial.intermediate_values)

    def lay_down(self) -> None:
        """Nobody runs the trials that were asked for or taken up and are not over: they are not left as if they ran."""
        import optuna

        for frozen in self.trials():
            if frozen.number in self._trials and frozen.state == optuna.trial.TrialState.RUNNING:
                self._lay_down(frozen)

    def _lay_down(self, frozen: optuna.trial.FrozenTrial) -> None:
        import optuna

        self._patiently(lambda: self._set_state(frozen, optuna.trial.TrialState.WAITING))

    def _set_state(self, trial: optuna.trial.FrozenTrial, state: Any) -> None:
        storage, number = self.study._storage, trial._trial_id  # noqa: SLF001 (Optuna has no other name)
        storage.set_trial_state_values(number, state)

    def suggest(self, number: int, kind: str, name: str, arguments: dict[str, Any]) -> Any:
        """What Optuna's trial suggests. Raises ValueError for what it refuses, ConfigError for what no trial of the
        search can have."""
        import optuna

        trial = self._trials[number]
        if isinstance(self.study.sampler, optuna.samplers.BruteForceSampler):
            if kind == "float" and arguments["low"] == arguments["high"]:
                arguments = {**arguments, "step": 1.0, "log": False}  # which it wants even of a single value
            if kind == "float" and arguments["step"] is None:
                raise ConfigError(
                    f"--algorithm grid: parameter {name!r} is any float from {arguments['low']:g} to "
                    f"{arguments['high']:g}: give suggest_float a step=, or use suggest_categorical; no trial is lost"
                )
            self._refuse_another_grid(number, kind, name, arguments)
        suggest: dict[str, Callable[..., Any]] = {
            "float": trial.suggest_float,
            "int": trial.suggest_int,
            "categorical": trial.suggest_categorical,
        }
        return self._patiently(lambda: suggest[kind](name, **arguments))

    def parameters(self, number: int) -> set[str]:
        """The names of those that a trial has been given, in whichever run of it."""
        return set(self._trials[number].params)

    def _refuse_another_grid(self, number: int, kind: str, name: str, arguments: dict[str, Any]) -> None:
        """The sampler would, too, once the study has it: at the end of every further trial."""
        from optuna import distributions

        if name in self._trials[number].params:
            return
        distribution = {
            "float": distributions.FloatDistribution,
            "int": distributions.IntDistribution,
            "categorical": distributions.CategoricalDistribution,
        }[kind](**arguments)
        if why := contradiction(self.trials(), number, name, distribution):
            raise ValueError(why)

    def report(self, number: int, report: Report) -> bool:
        """Whether it is new; a step that is reported again counts once."""
        known = self._steps.setdefault(number, set())
        if report.step in known:
            return False
        self._patiently(lambda: self._trials[number].report(report.value, report.step))
        known.add(report.step)
        return True

    def should_prune(self, number: int) -> bool:
        """What the study's pruner says of what the trial has reported."""
        return self._patiently(lambda: self._trials[number].should_prune())

    def attribute(self, number: int, key: str, value: Any) -> None:
        """Note it with the trial, as Optuna's ``set_user_attr`` does."""
        self._patiently(lambda: self._trials[number].set_user_attr(key, value))

    def note_failure(self, number: int, reason: str) -> None:
        """Why a trial fails that is about to be told so."""
        import optuna

        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):  # as :meth:`tell`
            self.attribute(number, "hadar:failure", reason)

    def tell(self, number: int, end: End, value: float | None = None) -> None:
        """A trial has ended; without a value a pruned one has that of its last report, as in Optuna. One that somebody
        else has ended meanwhile (Optuna's ``tell``) stays as it is."""
        import optuna

        state = optuna.trial.TrialState[end]

        def told() -> None:
            its = None if state == optuna.trial.TrialState.FAIL else value
            self.study.tell(number, its, state=state, skip_if_finished=True)

        self._patiently(told)
        self._trials.pop(number, None)

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """All trials of the study, in order of their numbers; not to be changed."""
        return self._patiently(lambda: self.study.get_trials(deepcopy=False))

    def better(self, one: float, other: float) -> bool:
        """By the aim of the study."""
        return one > other if self.maximize else one < other

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is as good as the target, by the aim of the study."""
        return value >= target if self.maximize else value <= target

    def _patiently(self, do: Callable[[], _T]) -> _T:
        """Wait for a storage that others hold, or whose disk is full; a call that failed has changed nothing."""
        return _patiently(do, self._say, 0.0 if self.impatient else _PATIENCE_S, "the study's storage")


def _patiently(do: Callable[[], _T], say: Callable[[str], None], patience_s: float, what: str) -> _T:
    until, told = time.monotonic() + patience_s, False
    while True:
        try:
            with _told(what):
                return do()
        except StoreError as error:
            if not error.passes or time.monotonic() > until:
                raise
            if not told:
                say(f"{error}; waiting for it")
                told = True
            time.sleep(0.5)


def _storage(url: str) -> Any:
    import optuna

    if sqlite_file(url) is not None:
        return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _LOCK_S}})
    return url


@contextlib.contextmanager
def opening(url: str) -> Iterator[None]:
    """What a storage that is opened, or a study that is loaded from it, can fail of, as ours."""
    try:
        with _told(url):
            yield
    except (ImportError, RuntimeError, ValueError) as error:  # no driver, an older Optuna's, several objectives
        raise StoreError(f"{url}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Optuna's and SQLAlchemy's errors of the storage, as ours."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        original = getattr(cause, "orig", None) or cause or error
        text = str(original).splitlines()[0]
        passes = any(word in text for word in ("is locked", "is full", "disk I/O", "busy"))
        raise StoreError(f"{what}: {text}", passes=passes) from error
    except KeyError as error:
        if _DELETED not in str(error):
            raise
        raise StoreError(f"{what} does not have the study any more: it was deleted") from error
    except optuna.exceptions.DuplicatedStudyError as error:
        raise ConfigError(str(error)) from error


def finite(value: Any) -> float | None:
    """A value that a trial can have; None for any other."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
