"""What goes on in a training but is in no checkpoint, so that a move would set it back: its owner is told."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from slurm_hadar.joblog import say
from slurm_hadar.runtime.batches.data import Feed
from slurm_hadar.runtime.batches.generators import generators_in
from slurm_hadar.runtime.batches.kept_over import place_in
from slurm_hadar.runtime.checkpoint.states.by_worker import sums_of
from slurm_hadar.runtime.checkpoint.turns import Turns
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.unsaved.carried import Carried, Known, remedy
from slurm_hadar.runtime.unsaved.counted import Counted
from slurm_hadar.runtime.unsaved.drawn import generators_of, state_of
from slurm_hadar.runtime.unsaved.flat import Flat
from slurm_hadar.runtime.unsaved.held import Held, models_within, stateful_among, tensors_of
from slurm_hadar.runtime.unsaved.numbers import REMEDY, Numbers
from slurm_hadar.runtime.unsaved.switches import Switches, differ, inner_of
from slurm_hadar.runtime.unsaved.tallies import Tallies, advice

__all__ = ["Beside", "Forgotten"]

_CHECK_AFTER = (10, 100, 1000)  # turns of this run; and before its saves
#: What goes on beside a model of several workers: module, class, and what tells how far it is.
_DISTRIBUTED = (
    ("model_averaging.averagers", "ModelAverager", "step"),
    ("ddp_comm_hooks.powerSGD_hook", "PowerSGDState", "iter"),
    ("ddp_comm_hooks.post_localSGD_hook", "PostLocalSGDState", "iter"),
)
_LOOK_AFTER = (1, 2, 3)  # turns; and when it is checked
_NOT_SAVED = "not saved, so a move or a restart sets it back"
_KEPT_STREAM = (
    "loader workers that are kept (persistent_workers=True) go on with their random numbers from one epoch of a stream "
    "to the next, and no checkpoint holds these: after a move or a restart the stream may come in another order. With "
    "persistent_workers=False each epoch is as it would have been"
)
_WITHIN_A_GENERATOR = (
    "the place in the DataLoader that the generator given as loader= goes through (give the DataLoader itself: the "
    "loop begins its next epoch by itself)"
)
_KEPT_OVER = (
    "the place in a DataLoader whose iterator loader= goes on with in the next epoch. Begin it anew in each epoch, as "
    "loader=lambda: zip(one, itertools.cycle(other)) does"
)
_IN_ANOTHER = "the place in another DataLoader"
_OF_OTHERS = ("parameters", "param_groups")  # than schedulers: models and optimizers have them
_SHARE = 0.05  # of the time, at most, where saves follow each other closely
_LARGE, _LOOKED_AT = 1 << 20, 1 << 16  # of a model that was not given: elements of a tensor, and of what is looked at

_all: weakref.WeakSet[Forgotten] = weakref.WeakSet()  # of this process's trainings


class Beside(NamedTuple):
    """What a script has where it calls ``train``, has not given to it, and may go on with the training: things with a
    state, by what they are, models by name, and plain tensors; and whether the place in a data set is saved."""

    drawn: Mapping[str, Any] = {}
    models: Mapping[str, Any] = {}
    is_kept: Callable[[Any], bool] = lambda _data: True
    goes_through: Callable[[Any], bool] = lambda _data: False
    kept_stream: Callable[[], bool] = lambda: False
    keeps_iterators: Callable[[], bool] = lambda: False
    carried: Carried | None = None
    held: Mapping[str, Held] = {}
    numbers: Mapping[str, Any] = {}
    mine: Callable[[], Iterable[Any]] = tuple

    @classmethod
    def of(cls, frame: types.FrameType, mine: list[Any], feed: Feed) -> Beside:
        """In the variables of ``frame``, the attributes of its ``self``, and the data of ``feed``. ``mine``: what is
        saved."""
        drawn_from = [*feed.drawn_from, *(one.of for one in mine if hasattr(one, "of"))]
        own = frame.f_locals.get("self")
        attributes = {f"self.{name}": value for name, value in getattr(own, "__dict__", {}).items()}
        there = {**frame.f_globals, **frame.f_locals, **attributes}
        nn = sys.modules.get("torch.nn")
        named = [(n, v) for n, v in there.items() if nn is not None and isinstance(v, nn.Module)]
        models = dict({id(v): (n, v) for n, v in (*models_within(there).items(), *named)}.values())  # each by one name
        generators = generators_of(there, drawn_from, mine)
        loaded = [id(one.dataset) for one in mine if hasattr(one, "dataset")]  # loaders that keep their place

        def is_kept(data: Any) -> bool:
            return id(data) in loaded or feed.is_over(data)

        weights = [getattr(sampler, "weights", None) for sampler in feed.drawn_from]
        carried = Carried.of(frame, lambda: [*mine, *weights])
        held = stateful_among(there, mine)
        streams = lambda: feed.kept_stream, lambda: feed.keeps_iterators
        seen = generators, models, is_kept, feed.goes_through, *streams, carried, held, feed.counts
        return cls(*seen, lambda: [*mine, *feed.lists])


class Forgotten:
    """Looks for optimizers that step, for parameters that they train, and for what else PyTorch knows that goes on with
    a training (schedulers, averages of weights, gradient scalers), where ``train`` was not given them; and for what is
    switched in the objects that were given and is not in their states. Each is told once, on stderr.

    Parameters
    ----------
    parts: the objects that are saved, without wrappers, by what they were given as and by name; what those that are no
        models (metrics) count in themselves is their own business.
    turns: sees the optimizers. link: tells the scheduler how many. beside: what of the script's is not saved.
    """

    def __init__(
        self,
        parts: Mapping[str, Mapping[str, Any]],
        turns: Turns,
        link: Link,
        beside: Beside | None = None,
    ) -> None:
        self._saved = [one for part in parts.values() for one in part.values()]
        self._models = list(parts.get("model", {}).values())
        self._known = {id(inner) for one in self._saved for inner in (one, *_parts_of(one))}
        self._turns, self._link = turns, link
        self._before: dict[int, Any] | None = None
        self._beside, self._drawn = beside or Beside(), dict[str, bytes]()
        self._carried = self._beside.carried
        self._numbers, self._tallies = Numbers(self._beside.numbers), Tallies(self._beside.mine)
        self._flat, self._made = Flat(self._carried, self._beside.mine), 0
        self._counted = Counted(() if parts.get("scheduler") else parts.get("optimizer", {}).values())
        self._others: Mapping[str, Mapping[str, int]] = {}
        self._loaded: Mapping[int, int] = {}
        self._given = [Switches.of(one) for one in self._saved]
        self._inner: list[Mapping[str, float]] = []
        self._dice = {id(one.of) for one in self._dice_now()}
        self._told: set[str] = set()
        self._next_check = 0.0
        _all.add(self)

    def loaded(self) -> None:
        """A checkpoint has been put into the objects."""
        self._loaded = self._versions()

    def begin(self, tells: bool) -> None:
        """The loop begins. What was loaded must be what it goes on from: a script's own checkpoint is older."""
        if self._carried is not None and tells:
            self._carried.begin()
            self._flat.begin()
        self._tell_of_set_weights(tells)

    def _tell_of_set_weights(self, tells: bool) -> None:
        loaded, self._loaded = self._loaded, {}
        if tells and loaded and self._versions() != loaded:
            say(
                "WARNING: weights were changed between train() and the loop, so the training does not go on from the "
                "checkpoint that it was resumed from. Load or set them before train() is called"
            )

    def _versions(self) -> dict[int, int]:
        tensors = (p for one in self._models if hasattr(one, "parameters") for p in one.parameters())
        return {id(p): p._version for p in tensors if not p.is_inference()}  # noqa: SLF001 - what autograd counts changes by

    def before_epoch(self, tells: bool) -> None:
        """The script is about to be given an epoch; what it does with weights at its beginning, each run does."""
        self._tell_of_set_weights(tells)
        self._numbers.before_epoch()
        self._flat.leave()
        self._tallies.between_epochs()

    def end_epoch(self) -> None:
        """The script is done with it."""
        self._tallies.between_epochs()

    def begin_epoch(self) -> None:
        """It asks for the epoch's first batch."""
        self._numbers.begin_epoch()
        self._tallies.begin_epoch()

    def turn(self, turn: int) -> None:
        """So many turns of this run are over."""
        self._made = turn
        self._tell_of_count(self._counted.turn(self._turns.last))
        if turn in _LOOK_AFTER:
            self._tallies.end_turn()
            self._flat.look(turn)
            if self._carried is not None:
                self._carried.look()
            self._look_at_held()
            self._tell_of_count(self._counted.look())
        if turn == 1:
            self._before = {id(one): count for one, _, count in self._going_on()}
            self._drawn = {name: state_of(drawn) for name, drawn in self._beside.drawn.items()}
            self._numbers.begin()
            self._others = self._sums_beside()
            self._inner = [inner_of(one) for one in self._models]  # caches are filled in the first turn
        elif turn in _CHECK_AFTER:
            self.check()
            self._tell_of_count(self._counted.look())

    def before_save(self, awaited: bool) -> None:
        """``awaited``: somebody waits for the save, most likely to end the training."""
        if awaited or time.monotonic() >= self._next_check:
            self.check()

    def check(self) -> None:
        """Look now, and not again before that has cost a small share of the time."""
        began = time.monotonic()
        self._check()
        self._check_carried()
        self._check_stream()
        self._check_tallies()
        now = time.monotonic()
        self._next_check = now + (now - began) / _SHARE

    def _check(self) -> None:
        found = {*self._turns.others, *self._turns.kept, *self._trained(), *self._switched(), *self._changed()}
        self._look_at_held()
        found |= {
            f"the {type(one.of).__name__} {name} ({one.gone_on} goes on)"
            for name, one in self._beside.held.items()
            if one.gone_on
        }
        found |= self._numbers.found()
        found |= {_KEPT_OVER} if self._beside.keeps_iterators() else set()
        found |= {name for name, before in self._drawn.items() if state_of(self._beside.drawn[name]) != before}
        if self._before is not None:
            found |= {
                what
                for one, what, count in self._going_on()
                if id(one) not in self._known and count is not None and self._before.get(id(one), 0) != count
            }
        new = sorted(found - self._told)
        if not new:
            return
        self._tell(new, f"{_NOT_SAVED}: {', '.join(new)}.{_advice(new)}")

    def _tell_of_count(self, words: str) -> None:
        if words:
            self._tell([words], words)

    def _look_at_held(self) -> None:
        """At what other trainings of the process have not been given, either."""
        given = {key for training in _all for key in training._known}  # noqa: SLF001 - of this class
        held = [one for one in self._beside.held.values() if id(one.of) not in given]
        if not held:
            return
        known = Known(one for training in _all for one in training._saved)  # noqa: SLF001
        names = {name for one in self._models if hasattr(one, "named_parameters") for name, _ in one.named_parameters()}
        for one in held:
            one.look(known, names)

    def _check_stream(self) -> None:
        if _KEPT_STREAM not in self._told and self._beside.kept_stream():
            self._tell([_KEPT_STREAM], _KEPT_STREAM)

    def _check_tallies(self) -> None:
        self._tallies.end_turn()
        self._flat.look(self._made)
        counts = self._flat.found()
        found = dict.fromkeys([*self._tallies.found(), *counts])
        if new := [name for name in found if name not in self._told]:
            turns = [name for name in new if counts.get(name)]
            self._tell(new, f"{_NOT_SAVED}: {', '.join(new)}.{advice(new, turns)}")

    def _check_carried(self) -> None:
        if self._carried is None:
            return
        self._carried.look()
        found = {name: what for name, what in sorted(self._carried.found().items()) if what not in self._told}
        if found:
            self._tell(found.values(), f"{_NOT_SAVED}: {', '.join(found.values())}. {remedy(found)}")

    def _tell(self, what: Iterable[str], words: str) -> None:
        """Once: in the output, and to who asks the scheduler."""
        self._told.update(what)
        self._link.forgets(len(self._told))
        say(f"WARNING: {words}")

    def _going_on(self) -> Iterator[tuple[Any, str, Any]]:
        """Each object that goes on, what it is called, and how far it has come."""
        for one, count in _going_on():
            of = getattr(one, "_dataset", None)
            if of is None:
                yield one, type(one).__name__, count
            elif self._beside.goes_through(of):
                yield one, _WITHIN_A_GENERATOR, count
            elif not self._beside.is_kept(of):
                yield one, f"{_IN_ANOTHER}, of {type(of).__name__} (it begins anew)", count

    def _sums_beside(self) -> dict[str, dict[str, int]]:
        """Of each model that was not given what tells whether it has changed, but for what is saved with another."""
        known = {id(t) for training in _all for one in training._saved for t in tensors_of(one).values()}  # noqa: SLF001 - of this class
        found = dict[str, dict[str, int]]()
        for name, one in self._beside.models.items():
            try:
                found[name] = sums_of({key: _some_of(t) for key, t in tensors_of(one).items() if id(t) not in known})
            except Exception:  # of an odd kind: nothing is said of it
                found[name] = {}
        return found

    def _switched(self) -> Iterable[str]:
        for one, given in zip(self._saved, self._given, strict=True):
            now = Switches.of(one)
            every_run = f"switched in {type(one).__name__} (switch it in every run, by run.step)"
            if differ(given.trained, now.trained):
                yield f"requires_grad, {every_run}"
            if differ(given.kinds, now.kinds):
                yield f"the precision of parameters, {every_run}"
            if differ(given.modes, now.modes):
                yield f"train() or eval() of a part, {every_run}"
            if others := sorted(given.names ^ now.names):
                yield (
                    f"{len(others)} parameters of {type(one).__name__}, new or gone ({others[0]}, ...; it "
                    "cannot go on unless the model has the same ones when train() is called)"
                )
            if now.groups > given.groups:
                yield f"parameter groups, added to {type(one).__name__} (it cannot go on unless train() has them all)"

    def _dice_now(self) -> list[Any]:
        return generators_in({type(m).__name__ + (f" {n}" if n else ""): m for n, m in enumerate(self._models)})

    def _changed(self) -> Iterable[str]:
        for one in self._dice_now():
            if id(one.of) not in self._dice:
                yield f"random number generator {one.path.strip('.')}, made in the loop"
        if self._others:
            changed = self._sums_beside()
            known = {name: sums for name, sums in self._others.items() if sums and changed[name]}
            yield from (f"the model {name}" for name, sums in known.items() if changed[name] != sums)
        for one, before in zip(self._models, self._inner, strict=False):
            now = inner_of(one)
            for name, value in before.items():
                if now.get(name, value) != value:
                    yield f"{name} in {type(one).__name__} (set it in every run, by run.step, or hold it in a buffer)"

    def _trained(self) -> Iterable[str]:
        """Parameters that a saved optimizer trains, and that are in no saved model."""
        held = {id(p) for one in self._saved if hasattr(one, "parameters") for p in one.parameters()}
        for one in self._saved:
            for group in getattr(one, "param_groups", ()):
                lost = sum(id(p) not in held for p in group["params"])
                if lost:
                    yield f"{lost} parameters that {type(one).__name__} trains"


def _advice(new: Iterable[str]) -> str:
    """What helps against losing these; of a place in a generator, and of numbers of a dataset, that is said with it."""
    places = [what for what in new if what.startswith(_IN_ANOTHER)]
    advice = ""
    if set(new) - {_WITHIN_A_GENERATOR, _KEPT_OVER, *places, *(what for what in new if what.endswith(REMEDY))}:
        advice += (
            " Give train() all models, optimizers and schedulers (a list or a dict of them), the rest as "
            "also={'name': object}."
        )
    if places:
        advice += (
            " Give train() such a DataLoader as loader=, or two as loader=lambda: zip(one, other), and take the "
            "batches that the loop gives: it begins the next epoch by itself."
        )
    return advice


def _some_of(tensor: Any) -> Any:
    return tensor if tensor.numel() <= _LARGE else tensor.detach().reshape(-1)[:_LOOKED_AT]


def _parts_of(one: Any) -> list[Any]:
    """The schedulers that a scheduler is made of, or whose state it gives as its own, as those of Accelerate do; and
    gradient scalers whose state an object gives as its own or among others, as a wrapper does."""
    found = [one]
    for outer in found:  # which grows meanwhile
        parts: list[Any] = []
        with contextlib.suppress(Exception):  # whatever a script's objects think of being looked at
            parts += vars(outer).get("_schedulers", ())
        with contextlib.suppress(Exception):  # of arrays it is not known whether they are equal
            inner = vars(outer).get("scheduler")
            is_other = any(hasattr(outer, name) for name in _OF_OTHERS)
            if inner is not None and not is_other and outer.state_dict() == inner.state_dict():
                parts.append(inner)
        with contextlib.suppress(Exception):
            scalers = [
                inner for inner in vars(outer).values() if isinstance(inner, sys.modules["torch"].amp.GradScaler)
            ]
            if scalers:
                own = outer.state_dict()
                states = [own, *(value for value in own.values() if isinstance(value, dict))]
                parts += [inner for inner in scalers if inner.state_dict() in states]
        found += [part for part in parts if all(part is not known for known in found)]
    return found[1:]


def _going_on() -> Iterable[tuple[Any, Any]]:
    """Each of these objects in this process, and how far it has come."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    kinds: dict[type, Any] = {
        torch.optim.lr_scheduler.LRScheduler: lambda one: one.last_epoch,
        torch.optim.swa_utils.AveragedModel: lambda one: int(one.n_averaged),
        torch.amp.GradScaler: lambda one: one.state_dict().get("_growth_tracker"),
        torch.utils.data.dataloader._BaseDataLoaderIter: place_in,  # noqa: SLF001 - what iter(loader) gives
    }
    for module, name, count in _DISTRIBUTED:
        if (kind := getattr(sys.modules.get(f"torch.distributed.algorithms.{module}"), name, None)) is not None:
            kinds[kind] = attrgetter(count)
    known: dict[type, Any] = {}  # there are very many objects, and few classes
    for one in gc.get_objects():
        kind = type(one)
        if kind not in known:
            known[kind] = next((count for base, count in kinds.items() if issubclass(kind, base)), None)
        if known[kind] is not None:
            try:
                count = known[kind](one)
            except (AttributeError, RuntimeError, TypeError, ValueError):  # half made, or of another making
                continue
            yield one, count
