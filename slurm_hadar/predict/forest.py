"""A random forest as plain arrays: grown by scikit-learn, asked without it.

What is stored and asked is not scikit-learn's object but the nodes of its trees. So reading a forest runs no code of
the file's (no pickle), does not depend on the version that grew it, and a command that only asks does not pay for
importing scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.errors import PredictionError
from slurm_hadar.predict.features import FEATURES, Sample

__all__ = ["FEWEST", "QUANTILES", "TREES", "Forest", "grow"]

TREES = 150
_LEAST_LEAF, _FEATURE_SHARE = 10, 1 / 3
#: Fewer samples than this are not learned from.
FEWEST = 40
#: Of the residuals (log of truth over prediction): the interval's ends, and between them by how much those who outlive
#: their prediction do.
QUANTILES = (0.1, 0.75, 0.9)
_FEWEST_RESIDUALS = 20
#: The median of the job's group, or what stands in for it: trees learn how far off that is.
_GUESS = FEATURES.index("series_median")
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Forest:
    """Trees of regression, padded to one size: ``T`` trees of at most ``N`` nodes.

    ``left``, ``right`` int32 [T, N]: children, themselves for a leaf; ``feature`` int16 [T, N]: index into
    :data:`FEATURES` (0 for a leaf); ``threshold`` float64 [T, N]: go left if not above it; ``value`` float64 [T, N].
    ``depth``: most steps from a root to a leaf. ``residuals`` float64 [2, 3]: :data:`QUANTILES` of log(truth /
    prediction) over out-of-bag predictions, for jobs of unseen groups and of seen ones. ``grown_by`` names the version
    of scikit-learn, ``samples`` how many jobs it learned from.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    feature: NDArray[np.int16]
    threshold: NDArray[np.float64]
    value: NDArray[np.float64]
    depth: int
    residuals: NDArray[np.float64]
    samples: int
    grown_by: str

    def predict(self, rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """Logs of seconds alone for ``rows`` [n, F]: the plain median, corrected by the mean over the trees."""
        exact = np.asarray(rows, dtype=np.float64).reshape(-1, len(FEATURES))
        x = exact.astype(np.float32)  # scikit-learn compares float32 with float64
        parts = [self._some(x[i : i + _ROWS_AT_ONCE]) for i in range(0, len(x), _ROWS_AT_ONCE)]
        return exact[:, _GUESS] + (np.concatenate(parts) if parts else np.zeros(0))

    def _some(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        tree = np.arange(len(self.left))[None, :]
        node = np.zeros((len(x), len(self.left)), dtype=np.int32)
        row = np.arange(len(x))[:, None]
        for _ in range(self.depth):
            goes_left = x[row, self.feature[tree, node]] <= self.threshold[tree, node]
            node = np.where(goes_left, self.left[tree, node], self.right[tree, node])
        mean: NDArray[np.float64] = self.value[tree, node].mean(axis=1)
        return mean

    def spread(self, seen: bool) -> tuple[float, float, float]:
        """The residuals' :data:`QUANTILES` for jobs of seen or unseen groups."""
        low, wide, high = self.residuals[int(seen)]
        return float(low), float(wide), float(high)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What :meth:`of_arrays` makes the same forest of."""
        names = ("left", "right", "feature", "threshold", "value", "residuals")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], samples: int, grown_by: str) -> Forest:
        """Build from :meth:`arrays`. Raises PredictionError for shapes, types or children that are none of a forest."""
        try:
            left, right = (np.asarray(arrays[k], dtype=np.int32) for k in ("left", "right"))
            feature = np.asarray(arrays["feature"], dtype=np.int16)
            threshold, value, residuals = (
                np.asarray(arrays[k], dtype=np.float64) for k in ("threshold", "value", "residuals")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PredictionError(f"not the arrays of a forest: {error}") from None
        shape, nodes = left.shape, left.shape[-1]
        # children come after their parents in scikit-learn's numbering: that there is no circle follows from it
        own = np.arange(nodes)[None, :] if left.ndim == 2 else np.zeros((1, 1))
        good = left.ndim == 2 and 0 not in shape and residuals.shape == (2, len(QUANTILES))
        good = good and all(a.shape == shape for a in (right, feature, threshold, value))
        good = good and all(bool(((a >= own) & (a < nodes)).all()) for a in (left, right))
        good = good and bool(((feature >= 0) & (feature < len(FEATURES))).all())
        if not good or not (np.isfinite(value).all() and np.isfinite(residuals).all()):
            raise PredictionError("not the arrays of a forest with these features")
        return cls(left, right, feature, threshold, value, _depth(left, right), residuals, samples, grown_by)


def _depth(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """Steps until every walk stands on a leaf."""
    tree = np.arange(len(left))[:, None]
    front = np.zeros((len(left), left.shape[1]), dtype=bool)
    front[:, 0] = True
    own = np.arange(left.shape[1])[None, :]
    leaf = (left == own) & (right == own)
    depth = 0
    while (inner := front & ~leaf).any():
        front = np.zeros_like(front)
        np.logical_or.at(front, (np.broadcast_to(tree, left.shape)[inner], left[inner]), True)
        np.logical_or.at(front, (np.broadcast_to(tree, left.shape)[inner], right[inner]), True)
        depth += 1
    return depth


def grow(samples: Sequence[Sample], trees: int = TREES, seed: int = 0) -> Forest:
    """Grow a forest on the log of seconds alone over the plain median, the feature ``series_median``: trees that find
    nothing then say what the median says, while trees grown on the log itself blur it. The same samples and seed give
    the same forest.

    The residuals are those of out-of-bag predictions: each job predicted by the trees that did not learn from it. Where
    fewer than 20 jobs are of unseen groups, or of seen ones, those of all jobs stand in. Raises PredictionError for
    fewer than :data:`FEWEST` samples.
    """
    if len(samples) < FEWEST:
        raise PredictionError(
            f"{len(samples)} jobs ended well and had others before them: at least {FEWEST} are needed to learn from"
        )
    import sklearn
    from sklearn.ensemble import RandomForestRegressor

    x = np.asarray([s.row for s in samples], dtype=np.float32)
    y = np.asarray([s.log_s - s.row[_GUESS] for s in samples])
    model = RandomForestRegressor(
        trees, min_samples_leaf=_LEAST_LEAF, max_features=_FEATURE_SHARE, oob_score=True, random_state=seed, n_jobs=1
    )
    with warnings.catch_warnings():  # with few trees a job may be in all bags: it has no residual, and is told about
        warnings.simplefilter("ignore", UserWarning)
        model.fit(x, y)
    seen = np.asarray([s.seen for s in samples])
    kept = _out_of_bag(model.estimators_samples_, len(y))
    residuals = _quantiles((y - model.oob_prediction_)[kept], seen[kept])
    arrays = _padded([t.tree_ for t in model.estimators_])
    return Forest.of_arrays({**arrays, "residuals": residuals}, len(samples), f"scikit-learn {sklearn.__version__}")


def _out_of_bag(bags: Sequence[NDArray[np.integer[Any]]], count: int) -> NDArray[np.bool_]:
    """Which samples have a tree that did not learn from them; all, for what the plain median leaves, where none has."""
    found = np.zeros(count, dtype=bool)
    for bag in bags:
        outside = np.ones(count, dtype=bool)
        outside[bag] = False
        found |= outside
    return found if found.any() else ~found


def _quantiles(residuals: NDArray[np.float64], seen: NDArray[np.bool_]) -> NDArray[np.float64]:
    found = []
    for kind in (False, True):
        those = residuals[seen == kind]
        found.append(np.quantile(those if len(those) >= _FEWEST_RESIDUALS else residuals, QUANTILES))
    return np.asarray(found)


def _padded(trees: Sequence[Any]) -> dict[str, NDArray[Any]]:
    nodes = max(t.node_count for t in trees)
    own = np.arange(nodes, dtype=np.int32)
    left, right = (np.tile(own, (len(trees), 1)) for _ in range(2))
    feature = np.zeros((len(trees), nodes), dtype=np.int16)
    threshold, value = np.zeros((len(trees), nodes)), np.zeros((len(trees), nodes))
    for i, tree in enumerate(trees):
        inner = np.flatnonzero(tree.children_left >= 0)
        left[i, inner], right[i, inner] = tree.children_left[inner], tree.children_right[inner]
        feature[i, inner], threshold[i, inner] = tree.feature[inner], tree.threshold[inner]
        value[i, : tree.node_count] = tree.value[:, 0, 0]
    return {"left": left, "right": right, "feature": feature, "threshold": threshold, "value": value}
