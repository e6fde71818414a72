"""Checks of what stands in the cluster and its queue: GPUs, nodes, partitions, jobs."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_hadar.comment import is_ours, looks_like_ours, read
from slurm_hadar.controller.steering.forms import no_type
from slurm_hadar.controller.steering.nodes import node_facts
from slurm_hadar.doctor.finding import Answer, Check, cannot_tell, note, ok, problem, warning
from slurm_hadar.doctor.slurm_checks import SlurmCase, added
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.slurm.survey import Unknown

__all__ = ["CHECKS"]

_NAMED = 5
_NEED_CARE = ("gres/gpu count", "Kill task failed", "Duplicate jobid")  # Slurm's own words for faults that stay


def _some(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def _gpu_types(case: SlurmCase) -> Answer:
    gres, state = case.slurm.setting("GresTypes"), case.slurm.state
    if isinstance(state, Unknown):
        return cannot_tell(state.why)
    if not isinstance(gres, Unknown) and "gpu" not in gres.split(","):
        return problem(
            f"GresTypes = {gres or '(none)'}: Slurm knows of no GPUs",
            f"{added(case.slurm, 'GresTypes', 'gpu')}    # and Gres=gpu:TYPE:N for each node, with gres.conf",
        )
    nodes = [n for n in state.nodes if n.gpus]
    if not nodes:
        return problem("no node has a GPU", "NodeName=... Gres=gpu:v100:4    # and gres.conf")
    untyped = {n.name: sum(c for _, c in n.gpus) for n in nodes if any(t == "gpu" for t, _ in n.gpus)}
    if untyped:
        first = next(iter(untyped))
        return warning(
            f"GPUs without a type on {_some(untyped)}: they all count as alike",
            f"NodeName={first} Gres=gpu:TYPE:{untyped[first]}    # the model, such as v100; in gres.conf Type=TYPE",
        )
    several = [n.name for n in nodes if len(n.gpus) > 1]
    if several:
        return warning(
            f"several GPU types on {_some(several)}: Slurm cannot be told which one an untyped request "
            "gets, so jobs there are left alone",
            "# one GPU type per node",
        )
    total: dict[str, int] = {}
    for gpu_type, count in (pair for n in nodes for pair in n.gpus):
        total[gpu_type] = total.get(gpu_type, 0) + count
    said = ", ".join(f"{count} {gpu_type}" for gpu_type, count in sorted(total.items()))
    if len(total) == 1:
        return note(f"{said}: one GPU type only, so there is no choice between types; policies still order jobs")
    return ok(said)


def _shards(case: SlurmCase) -> Answer:
    gres, state = case.slurm.options("GresTypes"), case.slurm.state
    if isinstance(state, Unknown) or isinstance(gres, Unknown):
        return cannot_tell(state.why if isinstance(state, Unknown) else gres.why)  # type: ignore[union-attr]
    nodes = [n for n in state.nodes if n.shards]
    if "shard" not in gres:
        return ok("Slurm gives whole GPUs only; hadar share run shares one within a job")
    if not nodes:
        return warning(
            "GresTypes names shard, but no node has any",
            "NodeName=... Gres=gpu:v100:4,shard:16    # and in gres.conf, behind the GPUs: Name=shard Count=16",
        )
    select = case.slurm.setting("SelectType")
    if not isinstance(select, Unknown) and select != "select/cons_tres":
        return problem(f"SelectType = {select}: it gives no shards", "SelectType=select/cons_tres")
    uneven = [n for n in nodes if n.shards % max(1, sum(count for _, count in n.gpus))]
    if uneven:
        gpus = sum(count for _, count in uneven[0].gpus)
        return warning(
            f"the shards of {_some(n.name for n in uneven)} are no multiple of its GPUs, so that these differ",
            f"NodeName={uneven[0].name} Gres=...,shard:{gpus * max(1, round(uneven[0].shards / max(1, gpus)))}",
        )
    container = case.slurm.setting("JobContainerType")
    if not isinstance(container, Unknown) and "tmpfs" in container:
        return warning(
            f"JobContainerType = {container}: each job has a /tmp of its own, and jobs on a GPU do not meet there",
            "export HADAR_SHARE_DIR=/run/user/$UID/hadar    # a folder on the node that jobs have in common",
        )
    said = ", ".join(f"{n.name} {n.shards}" for n in nodes[:_NAMED])
    return ok(f"shards: {said}" + (f" and {len(nodes) - _NAMED} nodes more" if len(nodes) > _NAMED else ""))


def _gpu_memory(case: SlurmCase) -> Answer:
    state = case.slurm.state
    if isinstance(state, Unknown):
        return cannot_tell(state.why)
    types = sorted({t for n in state.nodes for t, _ in n.gpus})
    if not types:
        return cannot_tell("no node has a GPU")
    book = node_facts(state.nodes, case.config.gpus.memory_gb)
    known = {t: book.memory_of(t) for t in types}
    unknown = [t for t, has in known.items() if has is None]
    if unknown:
        return note(
            f"nobody knows how much memory {_some(unknown)} has: jobs with mem= do not run there",
            f"[gpus.memory_gb]    # in the configuration: {unknown[0]} = 24",
        )
    return ok(", ".join(f"{t} {has} GB" for t, has in known.items()))


def _nodes(case: SlurmCase) -> Answer:
    state = case.slurm.state
    if isinstance(state, Unknown):
        return cannot_tell(state.why)
    bad = [n for n in state.nodes if n.gpus and not n.available]
    faulty = [n for n in bad if any(words in n.reason for words in _NEED_CARE)]
    if faulty:
        first = faulty[0]
        return warning(
            f"{_some(f'{n.name} ({n.reason})' for n in faulty)}: such nodes do not come back by themselves",
            f"scontrol update NodeName={first.name} State=RESUME    # when the cause is gone",
        )
    if bad:
        return note(f"not available: {_some(f'{n.name} ({n.reason or n.state})' for n in bad)}")
    return ok(f"all {sum(1 for n in state.nodes if n.gpus)} nodes with GPUs are available")


def _partitions(case: SlurmCase) -> Answer:
    state, config = case.slurm.state, case.config
    if isinstance(state, Unknown):
        return cannot_tell(state.why)
    known = {p.name for p in state.partitions}
    named = {
        "[partitions.NAME]": tuple(config.partitions),
        "controller.partitions": config.controller.partitions,
        "guard.exempt_partitions": config.guard.exempt_partitions,
    }
    for key, names in named.items():
        strange = sorted(set(names) - known)
        if strange:
            return warning(
                f"{key} names {_some(strange)}, which Slurm does not have",
                f"hadar config show --origin    # the partitions are {_some(sorted(known))}",
            )
    modes = sorted({f"{p.name} {config.mode(p.name)}" for p in state.partitions})
    return ok(f"modes: {_some(modes)}")


def _typed_jobs(case: SlurmCase) -> Answer:
    state = case.slurm.state
    if isinstance(state, Unknown):
        return cannot_tell(state.why)
    typed = [j for j in state.jobs if j.state.active and any(request.typed for request in j.gpus)]
    ours = [j for j in typed if is_ours(j.comment)]
    if ours:
        count = sum(n for _, n in ours[0].gpus[0].types)
        kinds = "+".join(sorted({t for r in ours[0].gpus for t, _ in r.types if t}))
        return warning(
            f"{_jobs(ours)} of hadar: name a GPU type, so they stay where Slurm puts them",
            f"sbatch --gres=gpu:{count} --comment=hadar:types={kinds}    # or job_submit.lua",
        )
    if typed:
        return note(
            f"{_jobs(typed)} without a hadar: comment name a GPU type; when they are to be steered, they must not"
        )
    if not any(j.gpus for j in state.jobs if j.state.active):
        return cannot_tell("no job with GPUs is in the queue now")
    return ok("no job in the queue names a GPU type")


def _comments(case: SlurmCase) -> Answer:
    state = case.slurm.state
    if isinstance(state, Unknown):
        return cannot_tell(state.why)
    active = [j for j in state.jobs if j.state.active]
    near = [j for j in active if not is_ours(j.comment) and looks_like_ours(j.comment)]
    if near:
        return warning(
            f"{_jobs(near)}: left alone, since the comment does not begin with hadar: (small letters)",
            _say_again(near[0], "..."),
        )
    ours = {j.job_id: (j, *read(j.comment)) for j in active if is_ours(j.comment)}
    broken = [(j, why) for j, _, why in ours.values() if why]
    if broken:
        job, why = broken[0]
        return warning(f"{_jobs([j for j, _ in broken])}: the comment cannot be read: {why}", _say_again(job, "..."))
    book = node_facts(state.nodes, case.config.gpus.memory_gb)
    nowhere = [(j, short) for j, comment, _ in ours.values() if (short := no_type(comment, book))]
    if nowhere:
        job, why = nowhere[0]
        return warning(
            f"{_jobs([j for j, _ in nowhere])}: no GPU type here will do: {why}: the scheduler starts them nowhere",
            _say_again(job, "types=..."),
        )
    if not ours:
        return cannot_tell("no job with a hadar: comment is in the queue now")
    return ok(f"the hadar: comments of {len(ours)} job{'s' if len(ours) > 1 else ''} can be read")


def _say_again(job: SlurmJob, body: str) -> str:
    return f"scontrol update JobId={job.job_id} Comment=hadar:{body}    # as {job.user}"


def _jobs(jobs: list[SlurmJob]) -> str:
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''} ({_some(j.job_id for j in jobs)})"


CHECKS = (
    Check("gpu_types", "Jobs are placed by the GPU types that nodes have in Slurm's GRES.", _gpu_types, ""),
    Check("gpu_memory", "A job with mem= runs only on GPU types that are known to have so much memory.", _gpu_memory),
    Check("shards", "Jobs may share a GPU where Slurm gives it in parts (--gres=shard:N).", _shards, ""),
    Check("nodes", "GPUs of nodes that are down or drained are given to nobody.", _nodes, ""),
    Check("partitions", "The configuration says for each partition how far the controller may go.", _partitions),
    Check(
        "comments", "A comment with hadar: says what a job is; one that cannot be read leaves it to Slurm.", _comments
    ),
    Check("typed_jobs", "Slurm accepts a change of a requested GPU type and then never starts the job.", _typed_jobs),
)
