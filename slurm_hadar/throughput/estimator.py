"""How fast a job runs on each GPU type: from measurements here, published figures or data sheets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from slurm_hadar.model import GpuType, Speed
from slurm_hadar.throughput.inference import (
    ANY_BATCH,
    MEASURED_ERROR,
    SHARED_ERROR,
    SPREAD_ASSUMED_ERROR,
    Anchor,
    Inference,
    Wanted,
    octaves,
)
from slurm_hadar.throughput.measurements import Measurement
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import ReferenceTable, worker_batch, workload

__all__ = ["DATA_SHEETS_WITHIN", "SHARED_FACTOR", "Estimator"]

#: In the reference table the ratio of two types is within this factor of the data sheets' for 90 % of the pairs, within
#: 1.35 for half of them.
DATA_SHEETS_WITHIN = 2.3
#: What other users measured may differ from what the hardware lets expect by at most this factor; our choice.
SHARED_FACTOR = 2.0


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
        self._store = store
        self._inference = Inference(table, gpus)

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
        known = self._inference.table_model(model)
        asked = None
        if elastic_from is not None:
            whole = (batch or self._inference.middle_batch(known) or ANY_BATCH) * elastic_from
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
        found = {t: self._speed(Wanted(t, workers, batch, known, asked), anchors, measured, model) for t in gpu_types}
        for gpu_type, factors in (by_nodes or {}).items():
            if gpu_type in found:
                of_gang = [m for m in measured if (m.gpu_type, m.gpus) == (gpu_type, workers)]
                found[gpu_type] = _by_graph(found[gpu_type], factors, of_gang)
        return found

    def _speed(self, wanted: Wanted, anchors: Iterable[Anchor], measured: Iterable[Measurement], model: str) -> Speed:
        spread = self._spread(wanted, measured)
        guess = self._inference.best(anchors, wanted)
        if wanted.asked is None:
            guess = min(filter(None, (guess, self._inference.published(wanted, model))), default=None)
        elif guess is None:
            guess = self._inference.published(wanted, model)
        return guess.speed(spread) if guess else self._inference.by_data_sheet(wanted, spread)

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
    ) -> list[Anchor]:
        """``by_nodes``: factors of a graph for gangs of ``workers``."""
        anchors = []
        for m, batch in zip(measured, batches, strict=True):
            rate, error = m.steps_per_s, SHARED_ERROR if m.shared else MEASURED_ERROR
            if m.spread and m.nodes and m.gpus == workers and m.gpu_type in by_nodes:
                rate, error = rate / _factor(by_nodes[m.gpu_type], m.nodes), math.hypot(error, SPREAD_ASSUMED_ERROR)
            elif m.spread:
                factor, of_factor = self._inference.spread(Wanted(m.gpu_type, m.gpus, batch, known))
                rate, error = rate / factor, math.hypot(error, of_factor)
            how = f"measured here {m.samples} time{'s' if m.samples > 1 else ''}"
            how = f"median of {m.users} users, measured here" if m.shared else how
            over = f" over {m.nodes or 'several'} nodes" if m.spread else ""
            source = f"{how} on {m.gpus} {m.gpu_type}{over}"
            anchors.append(Anchor(rate, m.gpu_type, m.gpus, batch, error, source, not m.shared))
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
                wanted = Wanted(m.gpu_type, m.gpus, batch, known)
                guess = self._inference.best(anchors, wanted)
                assert guess is not None
                expected = guess.steps_per_s * (self._inference.spread(wanted)[0] if m.spread else 1.0)
                rate = min(max(m.steps_per_s, expected / SHARED_FACTOR), expected * SHARED_FACTOR)
                m = replace(m, steps_per_s=rate)
            found.append(m)
        return found

    def _other_batches(self, model: str, batch: int | None, known: str, user: str, alone: bool) -> list[Anchor]:
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

    # several nodes

    def _spread(self, wanted: Wanted, measured: Iterable[Measurement]) -> float:
        """Rate on several nodes over rate on one; 1 for a single worker."""
        if wanted.workers == 1:
            return 1.0
        here = (wanted.gpu_type, wanted.workers)
        rates = {m.spread: m.steps_per_s for m in measured if (m.gpu_type, m.gpus) == here}
        if len(rates) == 2:
            return min(1.0, rates[True] / rates[False])
        return self._inference.spread(wanted)[0]


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
    nearest = (min(ratios, key=lambda n: (octaves(n, nodes), n)) for nodes in range(2, len(by_nodes) + 1))
    factors = (1.0, *(min(1.0, factor * ratios[n]) for factor, n in zip(by_nodes[1:], nearest, strict=True)))
    return replace(speed, steps_per_s=one_node, by_nodes=factors)
