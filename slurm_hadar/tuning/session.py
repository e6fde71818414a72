"""A tuning run from its options to its result: what ``hadar tune run`` and ``resume`` do."""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from slurm_hadar.errors import ConfigError, HadarError
from slurm_hadar.listening import room_for
from slurm_hadar.messages import restart_count
from slurm_hadar.runtime.allocation.gpus import in_allocation
from slurm_hadar.tuning.algorithms import search, take_up
from slurm_hadar.tuning.executor.executor import Executor, Stopped
from slurm_hadar.tuning.executor.launch import Launcher, LocalLauncher, SlurmLauncher, imports_of
from slurm_hadar.tuning.executor.site import Sites, sites_here
from slurm_hadar.tuning.executor.state import Settings, State
from slurm_hadar.tuning.search import Search
from slurm_hadar.tuning.study.book import Algorithm, Book, Sampler, opening, pruner_of, sampler_of
from slurm_hadar.tuning.study.profile import Profiles
from slurm_hadar.tuning.study.record import Record, folder_of, sqlite_file
from slurm_hadar.tuning.study.source import module_of, names_of
from slurm_hadar.tuning.trial.worker import load_objective

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = [
    "Ending", "Options", "Result", "best_of", "counts_of", "function_at", "options_of", "repeat_command", "run",
    "standing",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What a study is run with, kept in the study for ``resume``; ``gpus`` only to be told, since there may be others
    next time. ``objective``: FILE:FUNCTION, the file by its whole path."""

    objective: str
    storage: str
    study: str
    trials: int = 20
    algorithm: str = "tpe"
    sampler: str = Sampler.RANDOM
    metric: str | None = None
    direction: str = "minimize"
    target: float | None = None
    seed: int | None = None
    eta: int = 3
    first_rung: int = 1
    longest: int | None = None
    time_limit_s: float | None = None
    deadline_s: float | None = None
    packed: int = 2
    widest: int = 4
    gpus: str | None = None

    @property
    def file(self) -> Path:
        """That of the objective."""
        return Path(self.objective.rpartition(":")[0])

    @property
    def function(self) -> str:
        """The name of the objective in its file."""
        return self.objective.rpartition(":")[2]


#: In a job that was started anew the tuner of the run before may still be there, on a node that Slurm does not reach;
#: and NFS holds the lock of a node that has died for up to 90 s.
_PREDECESSOR_S = 180.0
_FILES = 32  # that a tuner has open beside those for trials
_FILES_EACH = 3  # two connections, and one that tells of its end
_OPEN_TO_SAMPLERS = (Algorithm.SHA, Algorithm.HYPERBAND, Algorithm.ASHA)
_DEFAULTS = {f.name: f.default for f in fields(Options)}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run has ended: ``why`` is done, target, or stopped. ``interrupted``: it was stopped by a Ctrl-C."""

    why: str
    book: Book
    folder: Path
    resizes: int
    interrupted: bool = False


def function_at(text: str) -> str:
    """``study.py:objective`` with the file's whole path. Raises ConfigError where there is no such function."""
    name, colon, function = text.rpartition(":")
    if not colon or not name or not function.isidentifier():
        raise ConfigError(f"{text!r} must read FILE.py:FUNCTION, as in study.py:objective")
    file = Path(name).resolve()
    names = names_of(file)
    if function not in names:
        raise ConfigError(f"{file} defines no {function}; it defines {', '.join(sorted(names)) or 'nothing'}")
    if names[function]:
        raise ConfigError(f"{file}: {function} is 'async def', a coroutine; take an ordinary function")
    module_of(file)
    return f"{file}:{function}"


def storage_url(text: str) -> str:
    """An SQLite file by its whole path, so that the study is found from any directory. Raises ConfigError for what is
    no URL."""
    from sqlalchemy.engine import make_url

    if not re.match(r"[a-z][a-z0-9_+]*://", text):
        raise ConfigError(
            f"--storage {text!r} must be a URL of SQLAlchemy's, such as sqlite:///tune.db; Optuna's journal files are "
            "not supported"
        )
    file = sqlite_file(text)
    return text if file is None else make_url(text).set(database=str(file)).render_as_string(hide_password=False)


def options_of(storage: str, study: str | None) -> Options:
    """What a study of ours was begun with. Raises ConfigError where there is none."""
    import optuna

    url = storage_url(storage)
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise ConfigError(f"{file}: there is no such study; begin one with hadar tune run")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with opening(url):
        names = optuna.get_all_study_names(url)
    if not names:
        raise ConfigError(f"{storage} has no study yet; begin one with hadar tune run")
    if study is None:
        if len(names) != 1:
            raise ConfigError(f"{storage} has {len(names)} studies ({', '.join(names)}): choose one with --study")
        study = names[0]
    if study not in names:
        raise ConfigError(f"{storage} has no study {study}; it has {', '.join(names)}")
    with opening(url):
        said = optuna.load_study(study_name=study, storage=url).user_attrs.get("hadar:run")
    if not isinstance(said, Mapping):
        raise _not_ours(study, storage)
    known = {f.name for f in fields(Options)}
    return Options(**{k: v for k, v in said.items() if k in known} | {"storage": url, "study": study})


def _not_ours(study: str, storage: str) -> ConfigError:
    return ConfigError(
        f"study {study} of {storage} was not begun with hadar tune run: take another --study; trials of your own go "
        "into one that was (Optuna's enqueue_trial, then hadar tune resume)"
    )


def standing(options: Options) -> tuple[dict[str, int], Result | None]:
    """How many trials are in which state, and the best of them, as the storage has it."""
    import optuna

    with opening(options.storage):
        trials = optuna.load_study(study_name=options.study, storage=options.storage).get_trials(deepcopy=False)
    return counts_of(trials), best_of(trials, options.direction == "maximize")


def counts_of(trials: Iterable[FrozenTrial]) -> dict[str, int]:
    """How many of ``trials`` are in which state, by Optuna's names of these in small letters."""
    return dict(Counter(trial.state.name.lower() for trial in trials))


def run(
    options: Options,
    say: Callable[[str], None],
    look: Callable[[Executor], None] | None = None,
    speeds: Callable[[Sites], Mapping[str, float]] | None = None,
    fresh: bool = True,
) -> Ending:
    """Run the study to its end, its target, or until it is told to stop. Raises HadarError.

    ``speeds``: of GPU types, of those that are there. ``fresh``: the study need not be there.
    """
    function_at(options.objective)  # its file may have changed since
    imports = imports_of(options.file)

    def found(wanted: str | None) -> Sites:
        sites = sites_here(wanted, os.environ)
        return sites if speeds is None else sites.with_speeds(speeds(sites))

    sites, settings = found(options.gpus), _settings(options, imports)
    _make_room(sites.count * (settings.packed if settings.hooked else 1))
    folder = folder_of(options.storage, options.study)
    record = Record(folder, say, _PREDECESSOR_S if restart_count(os.environ) else 0.0)
    launcher = _launcher(sites, imports)
    try:
        book = _open(options, say, fresh, record)
        profiles = Profiles()
        family = f"{options.file}:{options.function}"
        profile = profiles.of(family)
        state = State(book, sites, record, profile, settings, say)
        executor = Executor(state, launcher, look, _survey(options, found) if in_allocation(os.environ) else None)
        why = "done"
        record.event("began", gpus=sites.count)
        try:
            with _stopping(executor):
                if _reached(book, options.target, say):
                    why = "target"
                else:
                    _search(options, executor)
        except (Stopped, KeyboardInterrupt):  # the latter: a second Ctrl-C
            why = "target" if state.reached is not None else "stopped"
        except BaseException:  # whatever it is: what has broken off is not to be taken for done
            why = "broken off"
            raise
        finally:
            executor.lay_down()  # what an algorithm has asked for, and not brought to its end
            executor.close()
            profiles.keep(family, profile)
            record.event("ended", why=why)
        return Ending(why, book, folder, executor.resizes, why == "stopped" and executor.interrupted)
    finally:
        launcher.close()
        record.close()


def _make_room(processes: int) -> None:
    """For the files that a tuner of so many processes at a time has open. Raises ConfigError where it may not."""
    files = _FILES + _FILES_EACH * processes
    room_for(files)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != limit < files:
        raise ConfigError(
            f"{processes} trials at a time need {files} open files, and this tuner may have {limit}: raise the limit "
            f"(ulimit -n {files}), or give it fewer --gpus"
        )


def _settings(options: Options, imports: set[str]) -> Settings:
    hooked = bool({"slurm_hadar", "lightning", "transformers"} & imports)
    return Settings(
        options.file, options.function, options.metric, options.target, options.time_limit_s,
        options.packed, options.widest, hooked,
    )  # fmt: skip


def _search(options: Options, executor: Executor) -> None:
    """By the algorithm, ours or the user's own."""
    if ":" not in options.algorithm:
        what = Search(
            algorithm_of(options), options.trials, options.eta, options.first_rung, options.longest,
            options.sampler == Sampler.TPE, options.deadline_s, options.seed,
        )  # fmt: skip
        search(executor, what)
        return
    take_up(executor)
    with _of_the_user(options.algorithm):
        load_objective(*options.algorithm.rsplit(":", 1))(executor)


@contextlib.contextmanager
def _of_the_user(algorithm: str) -> Iterator[None]:
    """What an algorithm of the user's own raises is told by its place there."""
    try:
        yield
    except (HadarError, Stopped):
        raise
    except Exception as error:
        file = algorithm.rpartition(":")[0]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        told = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise HadarError(f"{file}{f', line {lines[-1]}' if lines else ''}: {told}") from error


def _reached(book: Book, target: float | None, say: Callable[[str], None]) -> bool:
    """Whether the target was reached before; then there is nothing to do."""
    if target is None:
        return False
    best = best_of(book.trials(), book.maximize)
    if best is None or not book.reaches(best.value, target):
        return False
    say(f"trial {best.number} has reached the target: {best.value:.6g}")
    return True


def _open(options: Options, say: Callable[[str], None], fresh: bool, record: Record) -> Book:
    algorithm = algorithm_of(options)
    if options.sampler != Sampler.RANDOM and algorithm not in _OPEN_TO_SAMPLERS:
        raise ConfigError(f"--sampler {options.sampler}: {options.algorithm} draws its trials itself; leave it out")
    if not Book.is_there(options.storage, options.study, say):
        record.belongs_to_none()
    book = Book.open(
        options.storage,
        options.study,
        "maximize" if options.direction == "maximize" else "minimize",
        sampler_of(algorithm, Sampler(options.sampler), options.seed),
        pruner_of(algorithm, options.eta, options.first_rung),
        say,
    )
    if trials := len(book.trials()):
        book.study.sampler = sampler_of(algorithm, Sampler(options.sampler), options.seed, trials)
    known = book.run_options()
    book.settle(record.folder, options.storage)
    record.belongs(book.identity(), fresh=known is None)
    if known is None:
        if book.trials():
            raise _not_ours(options.study, options.storage)
    else:
        for name in ("objective", "algorithm", "sampler", "direction"):
            if (before := known.get(name, _DEFAULTS[name])) != getattr(options, name):
                raise ConfigError(
                    f"study {options.study} was begun with {name} {before}, not {getattr(options, name)}: "
                    "take another --study or --storage"
                )
        before = int(known.get("trials", options.trials))
        if options.trials < before and algorithm in (Algorithm.SHA, Algorithm.HYPERBAND):
            raise ConfigError(
                f"study {options.study} was begun with {before} trials, and the brackets of {algorithm} do not become "
                f"smaller: give --trials {before} or more"
            )
        if fresh:
            say(f"study {options.study} is there already, with {len(book.trials())} trials: it goes on")
    book.note_run_options({k: v for k, v in asdict(options).items() if k not in ("storage", "study")})
    return book


def _launcher(sites: Sites, imports: set[str]) -> Launcher:
    if in_allocation(os.environ):
        return SlurmLauncher(max(1, min(s.cpus for s in sites.sites) // max(1, sites.count)))
    return LocalLauncher(imports, (os.cpu_count() or 1) // sites.count)


def _survey(options: Options, found: Callable[[str | None], Sites]) -> Callable[[], Sites | None]:
    """What the job has now, or all of it where that is less than ``--gpus`` asks for; None where Slurm does not say."""

    def survey() -> Sites | None:
        for wanted in dict.fromkeys((options.gpus, None)):
            with contextlib.suppress(ConfigError):
                return found(wanted)
        return None

    return survey


def algorithm_of(options: Options) -> Algorithm:
    """Whose sampler and pruner; one of the user's own has random ones, which draw what it does not set."""
    return Algorithm.RANDOM if ":" in options.algorithm else Algorithm(options.algorithm)


@contextlib.contextmanager
def _stopping(executor: Executor) -> Iterator[None]:
    """SIGTERM and SIGINT end the run after all have saved; a second SIGINT as ever."""

    def asked(number: int, _frame: FrameType | None) -> None:
        if executor.stop_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        executor.stop_asked = True
        executor.interrupted |= number == signal.SIGINT

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Result:
    """The best trial: of those that are complete, or if there is none, of all by their last reports."""

    number: int
    value: float
    parameters: dict[str, Any]
    complete: bool

    @property
    def told(self) -> dict[str, Any]:
        """As JSON, which has no infinite numbers: these go as text."""
        parameters = {name: str(value) if _infinite(value) else value for name, value in self.parameters.items()}
        return {"trial": self.number, "value": self.value, "parameters": parameters}


def best_of(trials: list[FrozenTrial], maximize: bool) -> Result | None:
    """The best of a study's trials; None where none has a value."""
    found = []
    for trial in trials:
        value = trial.value if trial.state.name == "COMPLETE" else None
        reports = [v for v in trial.intermediate_values.values() if math.isfinite(v)]
        if value is None and reports and trial.state.name != "FAIL":
            value = trial.intermediate_values[max(s for s, v in trial.intermediate_values.items() if math.isfinite(v))]
        if value is not None:
            found.append(Result(trial.number, value, trial.params, trial.state.name == "COMPLETE"))
    ranked = sorted(found, key=lambda r: (not r.complete, -r.value if maximize else r.value, r.number))
    return ranked[0] if ranked else None


def repeat_command(options: Options, result: Result) -> str:
    """A command that trains with a trial's parameters; needs Optuna and nothing else of a study."""
    import shlex

    name, folder = module_of(options.file)
    plain = all(part.isidentifier() for part in name.split("."))
    imported = f"optuna, {name} as study" if plain else "optuna, importlib"
    study = "study" if plain else f"importlib.import_module({name!r})"
    parameters = ", ".join(f"{name!r}: {_literal(value)}" for name, value in result.parameters.items())
    trial = f"optuna.trial.FixedTrial({{{parameters}}}, number={result.number})"
    code = f"import {imported}; print({study}.{options.function}({trial}))"
    return f"cd {shlex.quote(str(folder))} && python -c {shlex.quote(code)}"


def _literal(value: Any) -> str:
    return f"float({str(value)!r})" if _infinite(value) else repr(value)


def _infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
