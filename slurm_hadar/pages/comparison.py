"""The page and the pictures of a comparison (:mod:`slurm_hadar.simulator.compare`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_hadar.errors import TraceError
from slurm_hadar.pages import html as page
from slurm_hadar.pages import plots
from slurm_hadar.simulator.compare import KIND
from slurm_hadar.simulator.nodes import cluster_nodes
from slurm_hadar.simulator.replay import deviations
from slurm_hadar.simulator.undone import comparable, measured, share_undone, undone_by_all
from slurm_hadar.units import lasting

__all__ = ["SITE_TITLE", "TITLE", "check_document", "compare_page", "pictures", "results_in_short", "write_pictures"]

_SUMMARY_KEYS = ("policy", "avg_jct_s", "ttd_s", "jobs")
_DEFINITIONS = (
    "JCT: from a job's arrival to its end. TTD: from the first arrival to the last end.",
    "Finish-time fairness: a job's JCT over the time it would take with an equal share of every GPU type; below 1 is "
    "better than an equal share.",
    "Lower bounds: no schedule can do better, whatever it knows of the future; the best one may well be above them.",
    "GPUs held: the share of all GPU time, while there were jobs, in which a job held the GPU.",
    "Not done: times, fairness and moves are of the jobs that were done. Only policies that did all jobs which any "
    "policy did are held against the bounds, and can be the best of a column.",
)


TITLE = "Policies compared"
#: Of a page that ``hadar replay`` writes.
SITE_TITLE = "The site's own jobs under other policies"


def check_document(content: Any, name: str) -> dict[str, Any]:
    """``content`` of a JSON file as a comparison; one of ``hadar simulate --json`` becomes one of a single policy.

    Raises TraceError naming the file if it is neither.
    """
    if isinstance(content, dict) and content.get("kind") == KIND and content.get("version") == 1:
        return content
    if isinstance(content, dict) and all(key in content for key in _SUMMARY_KEYS):
        label = ":".join([content["policy"], *(f"{k}={v}" for k, v in content.get("params", {}).items())])
        bounds = {"ttd_s": content.get("lower_bound_ttd_s"), "avg_jct_s": content.get("lower_bound_avg_jct_s")}
        return {
            "kind": KIND,
            "version": 1,
            "command": "",
            "created": "",
            "trace": content.get("trace", ""),
            "cluster": content.get("cluster", ""),
            "model": content.get("model", ""),
            "round_s": content.get("round_s"),
            "seed": content.get("seed"),
            "gpus": {},
            "nodes": 0,
            "bounds": {k: v for k, v in bounds.items() if v},
            "assumptions": content.get("assumptions", []),
            "failed": {},
            "job_fields": [],
            "policies": [{**content, "label": label, "job_rows": [], "intervals": []}],
        }
    raise TraceError(f"{name} is neither a compare.json of hadar compare nor a result of hadar simulate --json")


def pictures(document: Mapping[str, Any]) -> dict[str, Callable[[bool], bytes]]:
    """What can be drawn, by file name without its ending; call with whether it is for dark."""
    policies = [{**p, "label": _marked(p, document["policies"])} for p in document["policies"]]
    found: dict[str, Callable[[bool], bytes]] = {
        "overview": lambda dark: plots.overview(policies, document["bounds"], dark)
    }
    held = {p["label"]: p["intervals"] for p in policies if p["intervals"]}
    if not held:
        return found
    rows = {p["label"]: [dict(zip(document["job_fields"], r, strict=True)) for r in p["job_rows"]] for p in policies}
    jcts = {
        label: [r["jct_s"] for r in some if r["counted"] and r["jct_s"] is not None] for label, some in rows.items()
    }
    shares = {p["label"]: p["utilisation"] for p in policies}
    models = {r["job_id"]: r["model"] for r in next(iter(rows.values()))}
    nodes = cluster_nodes(document["cluster"], by_node=document["model"] == "nodes")
    lanes = plots.lanes_of(held.values(), {(n.name, t): count for n in nodes for t, count in n.gpus.items()})
    counted = {label: sum(1 for r in some if r["counted"]) for label, some in rows.items()}
    found["jct_cdf"] = lambda dark: plots.jct_cdf(jcts, dark, counted)
    found["utilisation"] = lambda dark: plots.utilisation(held, document["gpus"], shares, dark)
    found["gantt"] = lambda dark: plots.gantt(held, models, lanes, dark)
    return found


def write_pictures(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """The light pictures as PNG files in ``folder``."""
    paths = []
    for name, draw in pictures(document).items():
        path = folder / f"{name}.png"
        path.write_bytes(draw(False))
        paths.append(path)
    return paths


def compare_page(document: Mapping[str, Any], title: str = TITLE) -> str:
    """The page, in one file."""
    policies = document["policies"]
    body = [page.paragraph(line) for line in (*_findings(policies), *deviations(policies))]
    body += [page.paragraph(f"{label} failed: {why}") for label, why in document["failed"].items()]
    body.append(
        page.section("Results", _table(policies), page.details("What the columns mean", page.listing(_DEFINITIONS)))
    )
    body += _figures(document)
    undone = {p["label"]: p.get("unfinished") for p in policies if p.get("unfinished")}
    for label, jobs in undone.items():
        reasons = [f"{job}: {why}" for job, why in list(jobs.items())[:20]]
        more = [f"and {len(jobs) - 20} more"] if len(jobs) > 20 else []
        body.append(page.section(f"Not done under {label}", page.listing([*reasons, *more])))
    body.append(page.section("What was simulated", page.listing(_setting(document))))
    if document["assumptions"]:
        body.append(page.section("What was assumed", page.listing(document["assumptions"])))
    if document["command"]:
        body.append(page.section("To do it again", page.code(document["command"])))
    made = f"made {document['created']}" if document["created"] else "made from a file"
    return page.page(title, _lead(document), body, made)


def results_in_short(document: Mapping[str, Any]) -> list[str]:
    """The findings and the table of results, for another page."""
    policies = document["policies"]
    return [
        page.paragraph(_lead(document)),
        *(page.paragraph(f) for f in (*_findings(policies), *deviations(policies))),
        _table(policies),
    ]


def _lead(document: Mapping[str, Any]) -> str:
    jobs, trace = measured(document["policies"]), Path(document["trace"]).name or "a trace"
    return f"{jobs} jobs of {trace} on {document['cluster']}, simulated."


def _findings(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first thing to know, in words: of the policies that are judged by the same jobs, and why others are not."""
    judged, never = comparable(policies), len(undone_by_all(policies))
    lines = []
    if never:
        lines.append(f"{never} of {measured(policies)} jobs were done under no policy; all figures are of the others.")
    lines += [
        f"{p['label']} left {share_undone(p, policies)} jobs undone: its figures are of other jobs than those of the "
        "other policies, and cannot be held against them."
        for p in policies
        if p not in judged and p.get("unfinished")
    ]
    everything = "everything else" if never else "everything"
    for key, what in (("avg_jct_s", "average job completion time"), ("ttd_s", f"time until {everything} was done")):
        known = sorted((p for p in judged if p.get(key)), key=lambda p: p[key])
        if len(known) < 2:
            continue
        best, rest = known[0], known[1:]
        others = ", ".join(f"{p['label']} takes {p[key] / best[key]:.2f} times as long" for p in rest)
        lines.append(f"Shortest {what}: {best['label']}, {lasting(best[key])}; {others}.")
    return lines


def _marked(policy: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> str:
    """Its label, with how many jobs it left undone."""
    share = share_undone(policy, policies)
    return f"{policy['label']} ({share} not done)" if share else policy["label"]


_HEAD = ("policy", "average JCT", "median JCT", "95 % JCT", "TTD", "queueing", "fairness", "GPUs held", "moves per job",
         "decision")  # fmt: skip


def _table(policies: Sequence[Mapping[str, Any]]) -> str:
    judged = comparable(policies)
    ranked = [p if p in judged else {} for p in policies]
    best = {key: page.best_of(ranked, key) for key in ("avg_jct_s", "p50_jct_s", "p95_jct_s", "ttd_s", "ftf_max")}

    def shown(index: int, key: str, bound: str = "") -> Any:
        policy = policies[index]
        text = lasting(policy.get(key), (p.get(key) for p in policies))
        main = page.Cell(text) if index in best.get(key, ()) else text
        low = ranked[index].get(bound) if bound else None
        return (main, f"{policy[key] / low:.2f} x bound") if low and policy.get(key) else main

    rows = []
    for i, p in enumerate(policies):
        fair = "-" if p.get("ftf_mean") is None else (f"{p['ftf_mean']:.2f}", f"worst {p['ftf_max']:.2f}")
        moves = p.get("moves_per_job") if p.get("rounds") else None
        undone = share_undone(p, policies)
        rows.append(
            [
                (p["label"], f"{undone} jobs not done") if undone else p["label"],
                shown(i, "avg_jct_s", "lower_bound_avg_jct_s"),
                shown(i, "p50_jct_s"),
                shown(i, "p95_jct_s"),
                shown(i, "ttd_s", "lower_bound_ttd_s"),
                shown(i, "avg_queueing_s"),
                fair,
                page.percent(p.get("gru")),
                "-" if moves is None else f"{moves:.2f}",
                f"{1000 * p.get('decide_mean_s', 0.0):.1f} ms" if p.get("rounds") else "-",
            ]
        )
    return page.table(_HEAD, rows)


def _figures(document: Mapping[str, Any]) -> list[str]:
    words = {
        "overview": ("Averages", "Bars: average job completion time and total time duration of each policy.", ""),
        "jct_cdf": ("Completion times", "Curves: the share of jobs done within a time, for each policy.",
                    "A curve further to the left is better: more jobs are done within the same time."),
        "utilisation": ("Use of the GPUs", "Curves: the share of GPUs held over time; bars: by GPU type.", ""),
        "gantt": ("Who ran where", "One panel for each policy: coloured bars for the jobs on each GPU over time.",
                  "One line for each GPU, colours by model; paper shows through where a GPU was free."),
    }  # fmt: skip
    parts = []
    for name, draw in pictures(document).items():
        title, seen, caption = words[name]
        parts.append(page.section(title, page.figure(draw, seen, caption)))
    return parts


def _setting(document: Mapping[str, Any]) -> list[str]:
    models = {"nodes": "real node boundaries and restart costs", "gavel": "no node boundaries, restarts cost nothing"}
    lines = [f"Trace {document['trace']}", f"Cluster {document['cluster']}"]
    if document["model"]:
        lines.append(f"Model {document['model']}: {models.get(document['model'], '')}")
    if document["round_s"]:
        lines.append(f"Rounds of {document['round_s']:g} s, seed {document['seed']}")
    bounds = document["bounds"]
    if bounds:
        found = [
            f"{name} {lasting(bounds[key])}"
            for key, name in (("avg_jct_s", "average JCT"), ("ttd_s", "TTD"))
            if bounds.get(key)
        ]
        lines.append("Lower bounds: " + ", ".join(found))
    return lines
