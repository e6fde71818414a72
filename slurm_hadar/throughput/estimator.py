"""How fast a job runs on each GPU type: from measurements here, published figures or data sheets."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.model import GpuType, Speed
from slurm_hadar.throughput.gpus import find
from slurm_hadar.throughput.store import Measurement, ThroughputStore
from slurm_hadar.throughput.table import ReferenceTable, Row, worker_batch, workload

__all__ = [
    "BATCH_EXPONENT", "COMPUTE_SHARE", "DOUBLING", "MEASURED_ERROR", "SHARED_FACTOR", "SPREAD", "Estimator",
    "elastic_growth", "relative_speed",
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

#: What other users measured may differ from what the hardware lets expect by at most this factor; our choice. In the
#: reference table the ratio of two types is within 1.35 of the data sheets' for half of the pairs, within 2.3 for 90 %.
SHARED_FACTOR = 2.0

# Expected relative errors of each inference, combined as independent.
MEASURED_ERROR, _SHARED_ERROR, _PUBLISHED = 0.05, 0.15, 0.5
_TYPE_BY_TABLE, _TYPE_BY_DATA_SHEET, _TYPE_PER_DOUBLING, _TYPE_UNKNOWN = 0.15, 0.3, 0.05, 0.9
_GANG_BY_TABLE, _GANG_PER_DOUBLING = 0.15, 0.25
_BATCH_BY_TABLE, _BATCH_PER_DOUBLING, _BATCH_UNKNOWN = 0.15, 0.25, 0.5
_SPREAD_KNOWN, _SPREAD_ASSUMED, _OTHER_FAMILY_MEMBER = 0.1, 0.25, 0.6

_MOST_RATIOS = 65536
_ANY_BATCH = 1 << 20  # of an elastic job of which nothing is known: only ratios count
_REFERENCE_TYPE = GpuType("v100", 10.99, 900.0)


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A known one-node rate from which others are inferred."""

    steps_per_s: float
    gpu_type: str
    workers: int
    batch: int | None
    error: float
    source: str
    own: bool = False  # measured here by the same user


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is wanted; ``known`` is the model's name in the table, or empty; ``asked`` are the gang size and batch per
    worker that an elastic job asked for, None for others."""

    gpu_type: str
    workers: int
    batch: int | None
    known: str
    asked: tuple[int, int | None] | None = None


@dataclass(frozen=True, slots=True, order=True)
class _Guess:
    """A one-node rate; guesses are ordered by their expected relative error."""

    error: float
    source: str
    steps_per_s: float
    measured: bool = field(default=False, compare=False)

    def speed(self, spread: float) -> Speed:
        return Speed(self.steps_per_s, spread, self.source, round(self.error, 3), measured=self.measured)


@dataclass(frozen=True, slots=True)
class _Step:
    """One inference: multiply by ``factor`` at the cost of ``error``; ``how`` in words, empty if nothing was done."""

    factor: float = 1.0
    error: float = 0.0
    how: str = ""


class Estimator:
    """Speeds of a job's whole gang on each GPU type.

    Every known rate (an anchor) is carried over to the wanted type, gang size and batch size, each step with an
    expected relative error; the anchor with the smallest error in all gives the estimate. That comes to this order:

    1. measured here on this type with this gang;
    2. measured here on another type, times the published ratio of the two types for this model, else
       ``1 / (beta F_0/F + (1 - beta) B_0/B)`` with F, B the arithmetic rate and the memory bandwidth, beta 0.7;
    3. measured here with another gang or batch size, scaled;
    4. published for this model, then for its family, scaled in the same ways;
    5. nothing but the data sheets: 1 step/s on a V100, scaled by F and B. Ratios between types then mean something,
       absolute rates do not, and ``error`` is None.

    "Here" is on this cluster by the same user, or by several others: then their median, which counts for less and is
    kept within :data:`SHARED_FACTOR` of what follows from the user's own measurements, or from that which most users
    made. What one user's jobs report can so mislead no other's.

    The scheme is our definition; the mix of F and B is the usual roofline argument.

    Parameters
    ----------
    table: published rates.
    store: what was measured here, or None.
    gpus: data-sheet figures of the site's own GPU types by GRES name; others are looked up by name.
    """

    def __init__(
        self,
        table: ReferenceTable,
        store: ThroughputStore | None = None,
        gpus: Mapping[str, GpuType] | None = None,
    ) -> None:
        self._table = table
        self._store = store
        self._gpus = dict(gpus or {})
        self._models = {_plain(m): m for m in table.models}
        self._rows: dict[str, list[Row]] = {}
        for row in table.rows:
            self._rows.setdefault(row.model, []).append(row)
        # The table never changes, so what follows from it alone is worked out once.
        self._from_table: dict[tuple[_Wanted, bool], _Guess | None] = {}
        self._spreads: dict[_Wanted, tuple[float, bool]] = {}
        self._ratios: dict[tuple[str, str, int, int | None, str], float | None] = {}

    def speeds(
        self,
        model: str,
        batch: int | None,
        workers: int,
        gpu_types: Iterable[str],
        *,
        key: str | None = None,
        elastic_from: int | None = None,
        by_nodes: Mapping[str, tuple[float, ...]] | None = None,
        user: str = "",
    ) -> dict[str, Speed]:
        """The speed of a gang of ``workers`` on each of ``gpu_types``.

        Parameters
        ----------
        model, batch: as the job names them; an empty model means that it names none.
        key: what its measurements are filed under; default ``workload(model, batch)``.
        user: whose job it is: what their jobs measured goes before what others' did.
        elastic_from: for an elastic job, the gang size that ``batch`` (per worker) holds for. Gangs of other sizes
            share the same batch of the whole gang, so that a step stays the same work.
        by_nodes: what the job's graph says of this gang on each type: factors on 1, 2, ... nodes (:class:`Speed`). They
            go before published factors, and what was measured here goes before them: a rate measured on n nodes is
            divided by the factor for n, and multiplied by it again when the gang is on n nodes.

        An elastic gang's other sizes are measured here, or follow from the size asked for, or from a measured one, by
        one law (:func:`elastic_growth`). What was measured of it at any size goes before what is published, and
        published figures of other gang sizes do not serve: they are noisy, and a policy that compares sizes would
        choose one for its noise.

        Raises StoreError if the store cannot be read.
        """
        known = self._table_model(model)
        asked = None
        if elastic_from is not None:
            whole = (batch or self._middle_batch(known) or _ANY_BATCH) * elastic_from
            asked, own = (elastic_from, worker_batch(whole, 1, elastic_from)), worker_batch(whole, 1, workers)
            by_batch = bool(batch and model)
            batch = own if by_batch else None
        measured = self._store.of(key or workload(model, batch), user) if self._store else []
        batches = [batch] * len(measured)
        if asked and not by_batch:  # filed under one key whatever the size was, so that each has a batch of its own
            batch, batches = own, [worker_batch(whole, 1, m.gpus) for m in measured]
        measured = self._kept_within(measured, batches, known)
        anchors = self._measured(measured, known, batches, workers, by_nodes or {})
        if self._store and (by_batch if asked else model and not key):
            anchors += self._other_batches(model, batch, known, user, alone=not measured)
        found = {t: self._speed(_Wanted(t, workers, batch, known, asked), anchors, measured, model) for t in gpu_types}
        for gpu_type, factors in (by_nodes or {}).items():
            if gpu_type in found:
                of_gang = [m for m in measured if (m.gpu_type, m.gpus) == (gpu_type, workers)]
                found[gpu_type] = _by_graph(found[gpu_type], factors, of_gang)
        return found

    def _speed(self, wanted: _Wanted, anchors: Iterable[_Anchor], measured: Iterable[Measurement], model: str) -> Speed:
        spread = self._spread(wanted, measured)
        guess = self._best(anchors, wanted)
        if wanted.asked is None:
            guess = min(filter(None, (guess, self._published(wanted, model))), default=None)
        elif guess is None:
            workers, batch = wanted.asked
            published = self._published(_Wanted(wanted.gpu_type, workers, batch, wanted.known), model)
            guess = published and _by_law(published, wanted)
        return guess.speed(spread) if guess else self._by_data_sheet(wanted, spread)

    def owner(self, model: str, user: str) -> str:
        """``user`` if something is known of this model from jobs of theirs; else "", as for all others of whom nothing
        is. A job without a model is one of its user alone."""
        if not model or self._store is None:
            return user
        return user if model in self._store.models_of(user) else ""

    def record_estimates(self, key: str, workers: int, speeds: Mapping[str, Speed], at: float, user: str = "") -> None:
        """Keep these estimates in the store, so that their error is known once the truth is; ratios that stand for no
        rate are none."""
        if self._store is None:
            return
        for gpu_type, speed in speeds.items():
            if speed.error is None:
                continue
            self._store.record_estimate(key, gpu_type, workers, speed.steps_per_s, speed.source, at, user=user)

    # where to start from

    def _measured(
        self,
        measured: Iterable[Measurement],
        known: str,
        batches: Iterable[int | None],
        workers: int = 0,
        by_nodes: Mapping[str, tuple[float, ...]] = {},
    ) -> list[_Anchor]:
        """``by_nodes``: factors of a graph for gangs of ``workers``."""
        anchors = []
        for m, batch in zip(measured, batches, strict=True):
            rate, error = m.steps_per_s, _SHARED_ERROR if m.shared else MEASURED_ERROR
            if m.spread and m.nodes and m.gpus == workers and m.gpu_type in by_nodes:
                rate, error = rate / _factor(by_nodes[m.gpu_type], m.nodes), math.hypot(error, _SPREAD_ASSUMED)
            elif m.spread:
                factor, assumed = self._published_spread(_Wanted(m.gpu_type, m.gpus, batch, known))
                rate, error = rate / factor, math.hypot(error, _SPREAD_ASSUMED if assumed else _SPREAD_KNOWN)
            how = f"measured here {m.samples} time{'s' if m.samples > 1 else ''}"
            how = f"median of {m.users} users, measured here" if m.shared else how
            over = f" over {m.nodes or 'several'} nodes" if m.spread else ""
            source = f"{how} on {m.gpus} {m.gpu_type}{over}"
            anchors.append(_Anchor(rate, m.gpu_type, m.gpus, batch, error, source, not m.shared))
        return anchors

    def _kept_within(
        self, measured: Sequence[Measurement], batches: Sequence[int | None], known: str
    ) -> list[Measurement]:
        """With medians of other users kept within :data:`SHARED_FACTOR` of what follows from the user's own
        measurements; without any, from the median of most users."""
        if not any(m.shared for m in measured):
            return list(measured)
        first = max(measured, key=lambda m: (not m.shared, m.users, m.samples))
        trusted = [(m, b) for m, b in zip(measured, batches, strict=True) if not m.shared or m is first]
        anchors = self._measured([m for m, _ in trusted], known, [b for _, b in trusted])
        found = []
        for m, batch in zip(measured, batches, strict=True):
            if m.shared and m is not first:
                wanted = _Wanted(m.gpu_type, m.gpus, batch, known)
                guess = self._best(anchors, wanted)
                assert guess is not None
                expected = guess.steps_per_s * (self._published_spread(wanted)[0] if m.spread else 1.0)
                rate = min(max(m.steps_per_s, expected / SHARED_FACTOR), expected * SHARED_FACTOR)
                m = replace(m, steps_per_s=rate)
            found.append(m)
        return found

    def _other_batches(self, model: str, batch: int | None, known: str, user: str, alone: bool) -> list[_Anchor]:
        """Measurements of the same model with other batch sizes: the user's own, or if there are none and these stand
        ``alone``, medians of others."""
        assert self._store is not None
        rows: list[Measurement] = []
        batches: list[int | None] = []
        for name in self._store.workloads():
            other, colon, text = name.rpartition(":")
            if not colon:
                other, text = name, ""
            if other == model and name != workload(model, batch) and (text.isdecimal() or not text):
                found = self._store.of(name, user)
                rows += found
                batches += [int(text) if text else None] * len(found)
        own = any(not m.shared for m in rows) or not alone
        chosen = [(m, b) for m, b in zip(rows, batches, strict=True) if not (own and m.shared)]
        rows, batches = [m for m, _ in chosen], [b for _, b in chosen]
        anchors = self._measured(self._kept_within(rows, batches, known), known, batches)
        return [replace(a, source=f"{a.source} with batch {a.batch or '?'}") for a in anchors]

    def _published(self, wanted: _Wanted, model: str) -> _Guess | None:
        """The best guess from the table alone."""
        if not wanted.known:
            return None
        own = _plain(wanted.known) == _plain(model)
        key = (wanted, own)
        if key not in self._from_table:
            error = _PUBLISHED if own else math.hypot(_PUBLISHED, _OTHER_FAMILY_MEMBER)
            source = f"published for {wanted.known}" + ("" if own else ", of the same family")
            rows = (r for r in self._rows[wanted.known] if not r.spread)
            anchors = [_Anchor(r.steps_per_s, r.gpu_type, r.gpus, r.batch, error, source) for r in rows]
            self._from_table[key] = self._best(anchors, wanted)
        return self._from_table[key]

    def _table_model(self, model: str) -> str:
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

    def _best(self, anchors: Iterable[_Anchor], wanted: _Wanted) -> _Guess | None:
        return min((self._carry_over(a, wanted) for a in anchors), default=None)

    def _carry_over(self, anchor: _Anchor, wanted: _Wanted) -> _Guess:
        steps = (
            self._to_type(anchor, wanted.gpu_type, wanted.known),
            self._to_gang(anchor, wanted.workers, "" if wanted.asked else wanted.known),
            self._to_batch(anchor, wanted.batch, "" if wanted.asked else wanted.known),
        )
        error = math.hypot(anchor.error, *(s.error for s in steps))
        rate = anchor.steps_per_s * math.prod(s.factor for s in steps)
        carried = [s.how for s in steps if s.how]
        return _Guess(error, "; ".join([anchor.source, *carried]), rate, anchor.own and not carried)

    def _by_data_sheet(self, wanted: _Wanted, spread: float) -> Speed:
        rate = DOUBLING ** math.log2(wanted.workers)
        if wanted.asked is not None:
            rate *= (wanted.workers / wanted.asked[0]) ** BATCH_EXPONENT
        figures = self._figures(wanted.gpu_type)
        if figures is None:
            return Speed(rate, spread, "nothing is known of the job nor of this GPU type; taken as a V100", None)
        rate *= _mix(_REFERENCE_TYPE, figures)
        return Speed(rate, spread, "nothing is known of the job; GPU types compared by their data sheets", None)

    def _to_type(self, anchor: _Anchor, gpu_type: str, known: str) -> _Step:
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

    def _type_ratio(self, known: str, anchor: _Anchor, gpu_type: str) -> float | None:
        """Published ratio of the two types at the nearest gang and batch size at which both were published."""
        where = (known, anchor.gpu_type, anchor.workers, anchor.batch, gpu_type)
        if where not in self._ratios:
            if len(self._ratios) >= _MOST_RATIOS:  # gangs and batch sizes are what users say
                self._ratios.clear()
            self._ratios[where] = self._nearest_ratio(known, anchor, gpu_type)
        return self._ratios[where]

    def _nearest_ratio(self, known: str, anchor: _Anchor, gpu_type: str) -> float | None:
        pairs = []
        for row in self._rows.get(known, ()):
            if row.gpu_type == anchor.gpu_type and not row.spread:
                other = self._table.steps_per_s(known, row.batch, gpu_type, row.gpus)
                if other:
                    distance = _doublings(row.gpus, anchor.workers) + _doublings(row.batch or 1, anchor.batch or 1)
                    pairs.append((distance, other / row.steps_per_s))
        return min(pairs)[1] if pairs else None

    def _to_gang(self, anchor: _Anchor, workers: int, known: str) -> _Step:
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

    def _to_batch(self, anchor: _Anchor, batch: int | None, known: str) -> _Step:
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

    def _batch_unknown(self, anchor: _Anchor, known: str) -> float:
        """Where no batch size is stated the middle one of the table is the best guess."""
        middle = self._middle_batch(known)
        if not middle or not anchor.batch:
            return _BATCH_UNKNOWN
        return _BATCH_UNKNOWN + 0.01 * _doublings(anchor.batch, middle)

    def _middle_batch(self, known: str) -> int | None:
        sizes = [b for b in self._table.batches(known) if b] if known else []
        return statistics.median_low(sizes) if sizes else None

    # several nodes

    def _spread(self, wanted: _Wanted, measured: Iterable[Measurement]) -> float:
        """Rate on several nodes over rate on one; 1 for a single worker."""
        if wanted.workers == 1:
            return 1.0
        here = (wanted.gpu_type, wanted.workers)
        rates = {m.spread: m.steps_per_s for m in measured if (m.gpu_type, m.gpus) == here}
        if len(rates) == 2:
            return min(1.0, rates[True] / rates[False])
        return self._published_spread(wanted)[0]

    def _published_spread(self, wanted: _Wanted) -> tuple[float, bool]:
        """The factor, clamped to 1 (values above are artefacts of measuring), and whether it is only assumed."""
        if wanted not in self._spreads:
            pairs = []
            for row in self._rows.get(wanted.known, ()):
                one_node = self._table.steps_per_s(row.model, row.batch, row.gpu_type, row.gpus)
                if row.spread and one_node:
                    batch = row.batch or 1
                    distance = _doublings(row.gpus, wanted.workers) + _doublings(batch, wanted.batch or batch)
                    distance += 0.0 if row.gpu_type == wanted.gpu_type else 2.0
                    pairs.append((distance, min(1.0, row.steps_per_s / one_node)))
            self._spreads[wanted] = (min(pairs)[1], False) if pairs else (SPREAD, True)
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


def _factor(by_nodes: Sequence[float], nodes: int) -> float:
    return by_nodes[min(nodes, len(by_nodes)) - 1]


def _by_graph(speed: Speed, by_nodes: tuple[float, ...], measured: Sequence[Measurement]) -> Speed:
    """The speed with the factors of a graph, put right by what was measured of this gang on several nodes: there that
    rate holds, and on other numbers of nodes the graph is taken to err as much as on the nearest one measured."""
    over = {m.nodes: m.steps_per_s for m in measured if m.spread and m.nodes}
    if not over:
        return replace(speed, by_nodes=by_nodes)
    one_node = speed.steps_per_s
    if all(m.spread for m in measured):  # a guess from elsewhere is not below what was seen here
        one_node = max(one_node, *over.values())
    ratios = {n: rate / one_node / _factor(by_nodes, n) for n, rate in over.items()}
    nearest = (min(ratios, key=lambda n: (_doublings(n, nodes), n)) for nodes in range(2, len(by_nodes) + 1))
    factors = (1.0, *(min(1.0, factor * ratios[n]) for factor, n in zip(by_nodes[1:], nearest, strict=True)))
    return replace(speed, steps_per_s=one_node, by_nodes=factors)


def elastic_growth(asked: int, workers: int) -> float:
    """The step rate of an elastic gang of ``workers`` over that of ``asked``, which share the same batch: a gang twice
    as large of which each worker has half the batch. Fitted to the reference table by its two medians."""
    growth: float = (DOUBLING * 2.0**BATCH_EXPONENT) ** math.log2(workers / asked)
    return growth


def _by_law(guess: _Guess, wanted: _Wanted) -> _Guess:
    """A guess for the gang size that an elastic job asked for, carried over to another of its sizes."""
    assert wanted.asked is not None
    doublings = math.log2(wanted.workers / wanted.asked[0])
    if not doublings:
        return guess
    how = (
        f"from {wanted.asked[0]} to {wanted.workers} GPUs that share the batch, {elastic_growth(1, 2):.3g} per doubling"
    )
    error = math.hypot(guess.error, _GANG_PER_DOUBLING * doublings)
    return _Guess(error, f"{guess.source}; {how}", guess.steps_per_s * elastic_growth(wanted.asked[0], wanted.workers))


def _mix(there: GpuType, here: GpuType) -> float:
    """Speed on ``here`` over speed on ``there``: a share of the time goes with arithmetic, the rest with memory."""
    time = COMPUTE_SHARE * there.tflops / here.tflops
    time += (1.0 - COMPUTE_SHARE) * there.bandwidth_gb_s / here.bandwidth_gb_s
    return 1.0 / time


def _doublings(a: float, b: float) -> float:
    return abs(math.log2(a / b))


def _plain(model: str) -> str:
    """``ResNet-18`` and ``resnet_18`` are ``resnet18``."""
    return re.sub(r"[^a-z0-9]", "", model.lower())


def _family(plain: str) -> tuple[str, int]:
    """``resnet18`` is number 18 of the family ``resnet``; number 0 if there is none."""
    match = re.fullmatch(r"([a-z]+)(\d+)[a-z]*", plain)
    return (match[1], int(match[2])) if match else (plain, 0)
