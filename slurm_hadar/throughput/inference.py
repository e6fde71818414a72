"""What follows from a known rate for other GPU types, gangs and batch sizes: by published figures or data sheets."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_hadar.model import GpuType, Speed
from slurm_hadar.throughput.gpus import find
from slurm_hadar.throughput.table import ReferenceTable, Row

__all__ = [
    "ANY_BATCH", "BATCH_EXPONENT", "COMPUTE_SHARE", "DOUBLING", "MEASURED_ERROR", "SHARED_ERROR", "SPREAD",
    "SPREAD_ASSUMED_ERROR", "Anchor", "Guess", "Inference", "Wanted", "octaves", "elastic_growth", "relative_speed",
]  # fmt: skip

#: Share of a step that is bound by arithmetic, the rest by memory bandwidth; untested choice. On the reference table
#: the median error of carrying a rate from one type to another is the same for 0.3 to 0.9.
COMPUTE_SHARE = 0.7
#: Step rate after doubling the gang, batch per worker kept: median of the reference table.
DOUBLING = 0.87
#: Step rate goes with the batch size to the power of minus this: median of the reference table.
BATCH_EXPONENT = 0.6
#: Step rate on several nodes over that on one, where nothing is known.
SPREAD = 0.8
#: Batch size of an elastic job of which nothing is known: only ratios count.
ANY_BATCH = 1 << 20

# Expected relative errors of each inference, combined as independent.
MEASURED_ERROR, SHARED_ERROR, _PUBLISHED = 0.05, 0.15, 0.5
_TYPE_BY_TABLE, _TYPE_BY_DATA_SHEET, _TYPE_PER_DOUBLING, _TYPE_UNKNOWN = 0.15, 0.3, 0.05, 0.9
_GANG_BY_TABLE, _GANG_PER_DOUBLING = 0.15, 0.25
_BATCH_BY_TABLE, _BATCH_PER_DOUBLING, _BATCH_UNKNOWN = 0.15, 0.25, 0.5
_SPREAD_KNOWN_ERROR, SPREAD_ASSUMED_ERROR, _OTHER_FAMILY_MEMBER = 0.1, 0.25, 0.6

_MOST_RATIOS = 65536
_REFERENCE_TYPE = GpuType("v100", 10.99, 900.0)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A known one-node rate from which others are inferred."""

    steps_per_s: float
    gpu_type: str
    workers: int
    batch: int | None
    error: float
    source: str
    own: bool = False  # measured here by the same user


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted; ``known`` is the model's name in the table, or empty; ``asked`` are the gang size and batch per
    worker that an elastic job asked for, None for others."""

    gpu_type: str
    workers: int
    batch: int | None
    known: str
    asked: tuple[int, int | None] | None = None


@dataclass(frozen=True, slots=True, order=True)
class Guess:
    """A one-node rate; guesses are ordered by their expected relative error."""

    error: float
    source: str
    steps_per_s: float
    measured: bool = field(default=False, compare=False)

    def speed(self, spread: float) -> Speed:
        """As policies see it."""
        return Speed(self.steps_per_s, spread, self.source, round(self.error, 3), measured=self.measured)


@dataclass(frozen=True, slots=True)
class _Step:
    """One inference: multiply by ``factor`` at the cost of ``error``; ``how`` in words, empty if nothing was done."""

    factor: float = 1.0
    error: float = 0.0
    how: str = ""


class Inference:
    """Rates of gangs that follow from known ones (anchors), or from the published table alone.

    Each step, to another GPU type, gang size or batch size, has an expected relative error; steps count as
    independent. What the table answers never changes, and is worked out once.

    Parameters
    ----------
    table: published rates.
    gpus: data-sheet figures of the site's own GPU types by GRES name; others are looked up by name.
    """

    def __init__(self, table: ReferenceTable, gpus: Mapping[str, GpuType] | None = None) -> None:
        self._table = table
        self._gpus = dict(gpus or {})
        self._models = {_plain(m): m for m in table.models}
        self._rows: dict[str, list[Row]] = {}
        for row in table.rows:
            self._rows.setdefault(row.model, []).append(row)
        self._from_table: dict[tuple[Wanted, bool], Guess | None] = {}
        self._spreads: dict[Wanted, tuple[float, float]] = {}
        self._ratios: dict[tuple[str, str, int, int | None, str], float | None] = {}

    def published(self, wanted: Wanted, model: str) -> Guess | None:
        """The best guess from the table alone; of an elastic job that for the size asked for, by one law."""
        if wanted.asked is None:
            return self._of_table(wanted, model)
        workers, batch = wanted.asked
        guess = self._of_table(Wanted(wanted.gpu_type, workers, batch, wanted.known), model)
        return guess and _by_law(guess, wanted)

    def _of_table(self, wanted: Wanted, model: str) -> Guess | None:
        if not wanted.known:
            return None
        own = _plain(wanted.known) == _plain(model)
        key = (wanted, own)
        if key not in self._from_table:
            error = _PUBLISHED if own else math.hypot(_PUBLISHED, _OTHER_FAMILY_MEMBER)
            source = f"published for {wanted.known}" + ("" if own else ", of the same family")
            rows = (r for r in self._rows[wanted.known] if not r.spread)
            anchors = [Anchor(r.steps_per_s, r.gpu_type, r.gpus, r.batch, error, source) for r in rows]
            self._from_table[key] = self.best(anchors, wanted)
        return self._from_table[key]

    def table_model(self, model: str) -> str:
        """The table's model for ``model``: itself, or the member of its family that is nearest in size; or ''."""
        if not model:
            return ""
        plain = _plain(model)
        if plain in self._models:
            return self._models[plain]
        family, size = _family(plain)
        kin = [m for p, m in self._models.items() if family and size and _family(p)[0] == family and _family(p)[1]]
        return min(kin, key=lambda m: (abs(math.log(_family(_plain(m))[1] / size)), m), default="")

    # how to get from there to here

    def best(self, anchors: Iterable[Anchor], wanted: Wanted) -> Guess | None:
        """The rate wanted, carried over from the anchor from which that errs least; None without one."""
        return min((self._carry_over(a, wanted) for a in anchors), default=None)

    def _carry_over(self, anchor: Anchor, wanted: Wanted) -> Guess:
        steps = (
            self._to_type(anchor, wanted.gpu_type, wanted.known),
            self._to_gang(anchor, wanted.workers, "" if wanted.asked else wanted.known),
            self._to_batch(anchor, wanted.batch, "" if wanted.asked else wanted.known),
        )
        error = math.hypot(anchor.error, *(s.error for s in steps))
        rate = anchor.steps_per_s * math.prod(s.factor for s in steps)
        carried = [s.how for s in steps if s.how]
        return Guess(error, "; ".join([anchor.source, *carried]), rate, anchor.own and not carried)

    def by_data_sheet(self, wanted: Wanted, spread: float) -> Speed:
        """Where no speed of the job or its like is known. ``spread``: its factor on several nodes."""
        rate = DOUBLING ** math.log2(wanted.workers)
        if wanted.asked is not None:
            rate *= (wanted.workers / wanted.asked[0]) ** BATCH_EXPONENT
        figures = self._figures(wanted.gpu_type)
        if figures is None:
            return Speed(rate, spread, "nothing is known of the job nor of this GPU type; taken as a V100", None)
        rate *= _mix(_REFERENCE_TYPE, figures)
        return Speed(rate, spread, "nothing is known of the job; GPU types compared by their data sheets", None)

    def _to_type(self, anchor: Anchor, gpu_type: str, known: str) -> _Step:
        if anchor.gpu_type == gpu_type:
            return _Step()
        ratio = self._type_ratio(known, anchor, gpu_type)
        if ratio is not None:
            return _Step(ratio, _TYPE_BY_TABLE, f"times {ratio:.3g}, the published ratio {gpu_type}/{anchor.gpu_type}")
        there, here = self._figures(anchor.gpu_type), self._figures(gpu_type)
        if there is None or here is None:
            return _Step(1.0, _TYPE_UNKNOWN, f"taken as equal on {gpu_type}, of which nothing is known")
        ratio = _mix(there, here)
        error = _TYPE_BY_DATA_SHEET + _TYPE_PER_DOUBLING * abs(math.log2(ratio))
        return _Step(ratio, error, f"times {ratio:.3g} for {gpu_type} by the data sheets")

    def _type_ratio(self, known: str, anchor: Anchor, gpu_type: str) -> float | None:
        """Published ratio of the two types at the nearest gang and batch size at which both were published."""
        where = (known, anchor.gpu_type, anchor.workers, anchor.batch, gpu_type)
        if where not in self._ratios:
            if len(self._ratios) >= _MOST_RATIOS:  # gangs and batch sizes are what users say
                self._ratios.clear()
            self._ratios[where] = self._nearest_ratio(known, anchor, gpu_type)
        return self._ratios[where]

    def _nearest_ratio(self, known: str, anchor: Anchor, gpu_type: str) -> float | None:
        pairs = []
        for row in self._rows.get(known, ()):
            if row.gpu_type == anchor.gpu_type and not row.spread:
                other = self._table.steps_per_s(known, row.batch, gpu_type, row.gpus)
                if other:
                    distance = octaves(row.gpus, anchor.workers) + octaves(row.batch or 1, anchor.batch or 1)
                    pairs.append((distance, other / row.steps_per_s))
        return min(pairs)[1] if pairs else None

    def _to_gang(self, anchor: Anchor, workers: int, known: str) -> _Step:
        if anchor.workers == workers:
            return _Step()
        batch = anchor.batch
        there = self._table.steps_per_s(known, batch, anchor.gpu_type, anchor.workers) if known else None
        here = self._table.steps_per_s(known, batch, anchor.gpu_type, workers) if known else None
        if there and here:
            return _Step(here / there, _GANG_BY_TABLE, f"from {anchor.workers} to {workers} GPUs as published")
        doublings = math.log2(workers / anchor.workers)
        how = f"from {anchor.workers} to {workers} GPUs at {DOUBLING} per doubling"
        return _Step(DOUBLING**doublings, _GANG_PER_DOUBLING * abs(doublings), how)

    def _to_batch(self, anchor: Anchor, batch: int | None, known: str) -> _Step:
        if anchor.batch == batch:
            return _Step()
        if anchor.batch is None or batch is None:
            return _Step(1.0, self._batch_unknown(anchor, known), f"as with batch {anchor.batch or 'not stated'}")
        there = self._table.steps_per_s(known, anchor.batch, anchor.gpu_type, anchor.workers) if known else None
        here = self._table.steps_per_s(known, batch, anchor.gpu_type, anchor.workers) if known else None
        how = f"with the batch times {batch / anchor.batch:.3g}"
        if there and here:
            return _Step(here / there, _BATCH_BY_TABLE, f"{how} as published")
        doublings = math.log2(batch / anchor.batch)
        return _Step(2.0 ** (-BATCH_EXPONENT * doublings), _BATCH_PER_DOUBLING * abs(doublings), how)

    def _batch_unknown(self, anchor: Anchor, known: str) -> float:
        """Where no batch size is stated the middle one of the table is the best guess."""
        middle = self.middle_batch(known)
        if not middle or not anchor.batch:
            return _BATCH_UNKNOWN
        return _BATCH_UNKNOWN + 0.01 * octaves(anchor.batch, middle)

    def middle_batch(self, known: str) -> int | None:
        """The middle one of a model's batch sizes in the table; None where it has none."""
        sizes = [b for b in self._table.batches(known) if b] if known else []
        return statistics.median_low(sizes) if sizes else None

    def spread(self, wanted: Wanted) -> tuple[float, float]:
        """Rate on several nodes over that on one as published, clamped to 1 (values above are artefacts of measuring),
        else assumed; and its expected relative error."""
        if wanted not in self._spreads:
            pairs = []
            for row in self._rows.get(wanted.known, ()):
                one_node = self._table.steps_per_s(row.model, row.batch, row.gpu_type, row.gpus)
                if row.spread and one_node:
                    batch = row.batch or 1
                    distance = octaves(row.gpus, wanted.workers) + octaves(batch, wanted.batch or batch)
                    distance += 0.0 if row.gpu_type == wanted.gpu_type else 2.0
                    pairs.append((distance, min(1.0, row.steps_per_s / one_node)))
            self._spreads[wanted] = (min(pairs)[1], _SPREAD_KNOWN_ERROR) if pairs else (SPREAD, SPREAD_ASSUMED_ERROR)
        return self._spreads[wanted]

    def _figures(self, gpu_type: str) -> GpuType | None:
        figures = self._gpus.get(gpu_type)
        if figures is not None and figures.tflops > 0 and figures.bandwidth_gb_s > 0:
            return figures
        return find(gpu_type)


def relative_speed(gpu_type: str) -> float:
    """How many times as fast as the reference GPU, a V100, a type computes by the data sheets; 1 for one that is not
    known."""
    figures = find(gpu_type)
    return 1.0 if figures is None else _mix(_REFERENCE_TYPE, figures)


def elastic_growth(asked: int, workers: int) -> float:
    """The step rate of an elastic gang of ``workers`` over that of ``asked``, which share the same batch: a gang twice
    as large of which each worker has half the batch. Fitted to the reference table by its two medians."""
    growth: float = (DOUBLING * 2.0**BATCH_EXPONENT) ** math.log2(workers / asked)
    return growth


def _by_law(guess: Guess, wanted: Wanted) -> Guess:
    """A guess for the gang size that an elastic job asked for, carried over to another of its sizes."""
    assert wanted.asked is not None
    doublings = math.log2(wanted.workers / wanted.asked[0])
    if not doublings:
        return guess
    how = (
        f"from {wanted.asked[0]} to {wanted.workers} GPUs that share the batch, {elastic_growth(1, 2):.3g} per doubling"
    )
    error = math.hypot(guess.error, _GANG_PER_DOUBLING * doublings)
    return Guess(error, f"{guess.source}; {how}", guess.steps_per_s * elastic_growth(wanted.asked[0], wanted.workers))


def _mix(there: GpuType, here: GpuType) -> float:
    """Speed on ``here`` over speed on ``there``: a share of the time goes with arithmetic, the rest with memory."""
    time = COMPUTE_SHARE * there.tflops / here.tflops
    time += (1.0 - COMPUTE_SHARE) * there.bandwidth_gb_s / here.bandwidth_gb_s
    return 1.0 / time


def octaves(a: float, b: float) -> float:
    """How many times the larger of two amounts is halved to come to the other."""
    return abs(math.log2(a / b))


def _plain(model: str) -> str:
    """``ResNet-18`` and ``resnet_18`` are ``resnet18``."""
    return re.sub(r"[^a-z0-9]", "", model.lower())


def _family(plain: str) -> tuple[str, int]:
    """``resnet18`` is number 18 of the family ``resnet``; number 0 if there is none."""
    match = re.fullmatch(r"([a-z]+)(\d+)[a-z]*", plain)
    return (match[1], int(match[2])) if match else (plain, 0)
