"""The Grafana board and the documentation speak of the metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from slurm_hadar.service.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]


def exported() -> set[str]:
    """The names that a scrape shows."""
    return {
        family.name + ("_total" if family.type == "counter" else "_info" if family.type == "info" else "")
        for family in Metrics().registry.collect()
    }


def test_the_board_is_over_exactly_these_names() -> None:
    """No panel stays empty for a name that is not exported, and no metric is without a panel."""
    board = json.loads((ROOT / "wrappers/grafana/hadar.json").read_text())
    expressions = [t["expr"] for p in board["panels"] for t in p["targets"]]

    assert {n for e in expressions for n in re.findall(r"hadar_[a-z_]+", e)} == exported()
    variables = json.dumps(board["templating"])
    assert set(re.findall(r"hadar_[a-z_]+", variables)) <= exported()
    places = [tuple(p["gridPos"].values()) for p in board["panels"]]
    assert len(set(places)) == len(places) and all(x + w <= 24 for w, _, x, _ in places)


def test_labels_on_the_board_are_labels() -> None:
    """What a panel groups or names by is a label of that metric."""
    registry = Metrics()
    labels = {name: set(given) for name, given in registry._labels.items()}  # noqa: SLF001 the labels that a board may name
    board = json.loads((ROOT / "wrappers/grafana/hadar.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            grouped = set(re.findall(r"sum by \((\w+)\)", target["expr"]))
            for name in re.findall(r"(hadar_[a-z_]+)_total", target["expr"]):
                assert grouped <= labels[name], panel["title"]


def test_every_metric_is_documented() -> None:
    """docs/operations.md lists each by name, and no other."""
    text = (ROOT / "docs/operations.md").read_text()

    assert set(re.findall(r"`(hadar_[a-z_]+?)(?:\{[^}]*\})?`", text)) == exported()
