"""Comparisons: policies side by side, their document, pictures and page."""

from __future__ import annotations

import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import ConfigError, TraceError
from slurm_hadar.pages import plots
from slurm_hadar.pages.comparison import check_document, compare_page, pictures, write_pictures
from slurm_hadar.simulator.compare import Comparison, compare, document, read_contenders
from slurm_hadar.simulator.run import SimOptions
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.throughput.table import reference
from slurm_hadar.units import lasting

CLUSTER = "v100:1x4,k80:1x2"
#: what a page may fetch from elsewhere: nothing
FETCHED = re.compile(r"""(?:src|srcset|href)=["'](?!data:)|url\((?!data:)|@import|<link|<script""")


def jobs(count: int = 6) -> Trace:
    made = [
        TraceJob(str(i), 30.0 * i, ("resnet18", "lm")[i % 2], (64, 20)[i % 2], 1 + i % 2, 40000.0 * (1 + i), user="ann")
        for i in range(count)
    ]
    return Trace("six.csv", "csv", tuple(made), ("the weather was fine",))


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """Two policies on six jobs, as compare.json has them."""
    told: list[tuple[str, int, int]] = []
    contenders = read_contenders("fifo,hadar:frontier=1")
    comparison = compare(jobs(), contenders, SimOptions(CLUSTER), reference(), 1, lambda *what: told.append(what), True)

    assert {label for label, _, _ in told} == {"fifo", "hadar:frontier=1"} and told[-1][1:] == (6, 6)
    return json.loads(json.dumps(document(comparison, "hadar compare <x> & y", 0.0)))


def test_contenders() -> None:
    """Parameters stand after colons; what is unknown or named twice is said in one line."""
    first, second = read_contenders("fifo, hadar:frontier=0.5:objective=jct")
    assert (first.label, second.label) == ("fifo", "hadar:frontier=0.5:objective=jct")
    assert second.params == {"frontier": "0.5", "objective": "jct"}
    for text, words in [
        ("fifo,fifo", "fifo stands twice"),
        ("fiffo", "no policy is called 'fiffo'"),
        ("hadar:frontier", "must read key=value"),
        ("hadar:x=1", "no parameter 'x'"),
        ("fifo,", "no policy is called ''"),
    ]:
        with pytest.raises(ConfigError, match=words):
            read_contenders(text)


@pytest.mark.thorough
def test_each_policy_gets_what_simulate_gives(content: dict[str, Any]) -> None:
    """The document has the summaries of two simulations of the same jobs, in the order of the contenders."""
    assert [p["label"] for p in content["policies"]] == ["fifo", "hadar:frontier=1"]
    assert content["assumptions"] == ["the weather was fine"] and content["gpus"] == {"v100": 4, "k80": 2}
    for policy in content["policies"]:
        rows = [dict(zip(content["job_fields"], row, strict=True)) for row in policy["job_rows"]]
        assert len(rows) == policy["jobs"] == 6
        assert policy["avg_jct_s"] == pytest.approx(sum(r["jct_s"] for r in rows) / 6)
        held = sum(count * (end - start) for _, _, _, count, start, end in policy["intervals"])
        assert held / (6 * policy["ttd_s"]) == pytest.approx(policy["gru"], rel=1e-3)
        for key, bound in content["bounds"].items():
            assert 0 < bound == policy[f"lower_bound_{key}"] <= policy[key]


@pytest.mark.thorough
def test_a_policy_that_fails_does_not_stop_the_others() -> None:
    """Left out of the results, with the reason; if none is left there is nothing to show."""
    comparison = compare(jobs(), read_contenders("none,fifo"), SimOptions(CLUSTER), reference(), 2)

    assert list(comparison.results) == ["fifo"]
    assert "leaves the jobs to Slurm" in comparison.failed["none"]
    with pytest.raises(ConfigError, match="none: why"):
        document(Comparison(failed={"none": "why"}), "", 0.0)


class _Tags(HTMLParser):
    """Checks that elements are closed in order."""

    VOID = ("meta", "img", "source", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(text: str) -> str:
    """The words of a page that is well formed and complete in itself."""
    assert not FETCHED.search(text)
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    return tags.text


def test_the_page_is_one_file_with_everything(content: dict[str, Any]) -> None:
    """Well formed, nothing fetched, table, assumptions and command in it; others' texts are text, not markup."""
    evil = {
        **content,
        "policies": [{**content["policies"][0], "label": "<b>fifo"}, content["policies"][1]],
        "failed": {"x": "<script>"},
    }
    page = compare_page(evil)
    words = read_page(page)

    for policy in content["policies"]:
        assert lasting(policy["avg_jct_s"]) in words
    for said in ("<b>fifo", "x failed: <script>", "the weather was fine", "hadar compare <x> & y", CLUSTER):
        assert said in words
    assert page.count("data:image/png;base64,") == 2 * len(pictures(evil))


def starved(content: dict[str, Any], label: str, jobs: tuple[str, ...]) -> dict[str, Any]:
    """The same comparison, in which a policy has left these jobs undone."""
    times = [content["job_fields"].index(name) for name in ("first_start_s", "completion_s", "jct_s", "queueing_s")]
    policies = json.loads(json.dumps(content["policies"]))
    for policy in policies:
        if policy["label"] != label:
            continue
        policy["unfinished"] = dict.fromkeys(jobs, "nobody knows why")
        policy["jobs"] -= len(jobs)
        policy["avg_jct_s"] = policy["p50_jct_s"] = policy["p95_jct_s"] = policy["ttd_s"] = 1.0
        for row in policy["job_rows"]:
            if row[0] in jobs:
                for at in times:
                    row[at] = None
    return {**content, "policies": policies}


def test_a_policy_that_left_jobs_undone_is_not_the_best(content: dict[str, Any]) -> None:
    """Its averages, of fewer jobs, are no better for that: it is marked, and held against nobody; the number of jobs
    is the trace's, whoever stands first."""
    three = {**content, "policies": [*content["policies"], {**content["policies"][1], "label": "srtf"}]}
    page = compare_page(starved(three, "fifo", ("1", "4")))
    words = read_page(page)

    assert "6 jobs of six.csv" in words and "fifo left 2 of 6 jobs undone: its figures are of other jobs" in words
    assert "Shortest average job completion time: hadar:frontier=1" in words and "fifo takes" not in words
    assert "<td>fifo<br><small>2 of 6 jobs not done</small></td>" in page
    assert '<td class="best">1.00 s' not in page and "Not done under fifo" in words
    assert f"{1 / content['bounds']['ttd_s']:.2f} x bound" not in words


def test_what_nobody_could_do_is_held_against_nobody(content: dict[str, Any]) -> None:
    """Where all have left the same jobs undone, all figures are of the same jobs."""
    both = starved(starved(content, "fifo", ("1",)), "hadar:frontier=1", ("1",))
    words = read_page(compare_page(both))

    assert "1 of 6 jobs were done under no policy; all figures are of the others." in words
    assert "Shortest time until everything else was done: " in words and "its figures" not in words


def test_names_of_models_are_no_formulas() -> None:
    r"""A trace may have any: matplotlib ends at ``$\frac$``."""
    rows = {"a": [("1", "n", "v100", 1, 0.0, 100.0)]}
    assert plots.gantt(rows, {"1": r"$\frac$"}, {("n", "v100"): 1}) != plots.gantt(rows, {"1": "x"}, {("n", "v100"): 1})


def test_undone_jobs_are_marked_in_the_pictures(content: dict[str, Any]) -> None:
    """A curve of completion times ends where the jobs that were done end, not at all of them."""
    assert plots.jct_cdf({"a": [1.0, 2.0]}) == plots.jct_cdf({"a": [1.0, 2.0]}, jobs={"a": 2})
    assert plots.jct_cdf({"a": [1.0, 2.0]}) != plots.jct_cdf({"a": [1.0, 2.0]}, jobs={"a": 4})
    undone = starved(content, "fifo", ("1", "4"))
    unmarked = {**undone, "policies": [{**p, "unfinished": {}} for p in undone["policies"]]}
    assert pictures(undone)["overview"](False) != pictures(unmarked)["overview"](False)


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])


def test_pictures(content: dict[str, Any], tmp_path: Path) -> None:
    """Four, in light and dark, readable in size; the files are the light ones."""
    drawn = pictures(content)

    assert list(drawn) == ["overview", "jct_cdf", "utilisation", "gantt"]
    for path in write_pictures(content, tmp_path):
        width, height = size_of(path.read_bytes())
        assert 1000 <= width <= 1600 and 150 <= height <= 4000
    assert drawn["overview"](True) != drawn["overview"](False)


@pytest.mark.thorough
def test_lower_bounds_are_drawn(content: dict[str, Any]) -> None:
    """A bound changes the picture, and stands in the table as a ratio."""
    bounds = {"avg_jct_s": 1000.0, "ttd_s": 2000.0}
    assert plots.overview(content["policies"], bounds) != plots.overview(content["policies"], {})
    low = [{**p, "lower_bound_ttd_s": p["ttd_s"] / 2} for p in content["policies"]]
    assert "2.00 x bound" in read_page(compare_page({**content, "policies": low, "bounds": bounds}))


def test_gpus_of_a_node_are_drawn_one_by_one() -> None:
    """Jobs on a node lie on lanes of their own, a gang on as many as it has GPUs, and none on another's."""
    rows = [("a", "n", "v100", 2, 0.0, 10.0), ("b", "n", "v100", 1, 5.0, 20.0), ("c", "n", "v100", 2, 10.0, 12.0),
            ("d", "other", "v100", 1, 0.0, 1.0)]  # fmt: skip
    bars = list(plots.bars_of(rows, {("n", "v100"): 3}))

    assert sorted((row[0], lane) for lane, row in bars) == [("a", 0), ("a", 1), ("b", 2), ("c", 0), ("c", 1)]


def test_held_is_the_exact_mean_in_each_bin() -> None:
    """Two GPUs for half a bin and one for all of it."""
    rows = [("a", "n", "v100", 2, 0.0, 5.0), ("b", "n", "v100", 1, 0.0, 20.0)]
    assert list(plots.held_per_bin(rows, [0.0, 10.0, 20.0, 30.0])) == [2.0, 1.0, 0.0]


def test_an_outlier_is_cut_off_and_named() -> None:
    """The axis ends at three times the quickest policy's end."""
    end, late = plots.horizon({"a": [("j", "n", "t", 1, 0.0, 3600.0)], "b": [("j", "n", "t", 1, 0.0, 36000.0)]})
    assert end == 3 * 3600.0 and late == {"b": " (cut off, ends after 10.0 h)"}


def test_results_of_simulate_are_taken_too_and_others_refused(content: dict[str, Any]) -> None:
    """A summary becomes a comparison of one; any other JSON is refused with the file's name."""
    one = content["policies"][1]
    summary = {k: v for k, v in one.items() if k not in ("label", "job_rows", "intervals")}
    document_ = check_document(summary, "x.json")

    assert document_["policies"][0]["label"] == "hadar:frontier=1" and list(pictures(document_)) == ["overview"]
    assert "hadar:frontier=1" in read_page(compare_page(document_))
    assert check_document(content, "y.json") is content
    wrong: Any
    for wrong in ([], {}, {"kind": "other"}, 3):
        with pytest.raises(TraceError, match=r"x\.json is neither"):
            check_document(wrong, "x.json")
