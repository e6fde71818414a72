"""job_submit.lua: what it changes of a job, says of it, and refuses."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar import comment
from tests.cluster.conftest import UNSET, Endless, submitted_job

MAC = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("field", "asked", "given_", "types"),
    [
        ("tres_per_node", "gres:gpu:v100:2", "gres:gpu:2", "v100"),
        ("tres_per_node", "gres/gpu:v100:2", "gres/gpu:2", "v100"),
        ("tres_per_node", "gres:gpu:v100", "gres:gpu:1", "v100"),
        ("tres_per_node", "gres:gpu:v100:1,gres:gpu:k80:2", "gres:gpu:3", "v100+k80"),
        ("tres_per_node", "gres:shard:4,gres:gpu:v100:2", "gres:shard:4,gres:gpu:2", "v100"),
        ("tres_per_job", "gres:gpu:p100:4", "gres:gpu:4", "p100"),
        ("tres_per_task", "gres:gpu:p100:1", "gres:gpu:1", "p100"),
        ("tres_per_task", "gres/gpu:p100=2", "gres/gpu=2", "p100"),
        ("tres_per_task", "cpu=4,gres/gpu:p100=2", "cpu=4,gres/gpu=2", "p100"),
        ("tres_per_task", "gres/gpu=2", "gres/gpu=2", ""),
        ("tres_per_node", "gres:gpu:2", "gres:gpu:2", ""),
        ("tres_per_node", "gres:gpuish:2", "gres:gpuish:2", ""),
        ("tres_per_node", "gres:gpu:v100:2:odd", "gres:gpu:v100:2:odd", ""),
    ],
)
def test_typed_requests_become_untyped(lua: Any, field: str, asked: str, given_: str, types: str) -> None:
    """The type leaves the request and stays as a wish in the comment."""
    answer = lua.call("submit", **submitted_job(comment="hadar:model=m", **{field: asked}))

    assert answer.accepted and not answer.logged
    assert answer.job[field] == given_
    assert answer.job["comment"] == "hadar:model=m" + (f",prefer={types}" if types else "")
    assert answer.job["requeue"] == "1"
    comment.parse(answer.job["comment"])


def test_own_wish_and_empty_comment(lua: Any) -> None:
    """prefer= of the user's own is kept; a bare hadar: gets no stray comma."""
    own = lua.call("submit", **submitted_job(comment="hadar:prefer=k80", tres_per_node="gres:gpu:v100:2"))
    bare = lua.call("submit", **submitted_job(comment="hadar: ", tres_per_node="gres:gpu:v100:2"))

    assert own.job["comment"] == "hadar:prefer=k80"
    assert comment.parse(bare.job["comment"]) == comment.parse("hadar:prefer=v100")


@pytest.mark.parametrize(
    ("nodes", "per_node"), [((1, 1), "gres:gpu:4"), ((UNSET, UNSET), None), ((1, 2), None), ((2, 2), None)]
)
def test_gpus_of_a_single_node_are_counted_per_node(lua: Any, nodes: tuple[int, int], per_node: str | None) -> None:
    """--gpus on exactly one node becomes GPUs per node; otherwise the total stays."""
    job = submitted_job(comment="hadar:", tres_per_job="gres:gpu:v100:4")
    job |= {"min_nodes": nodes[0], "max_nodes": nodes[1]}

    answer = lua.call("submit", **job)

    assert answer.job.get("tres_per_node") == per_node
    assert answer.job["tres_per_job"] == ("" if per_node else "gres:gpu:4")


def test_environment_is_cleaned_and_marked(lua: Any) -> None:
    """Stale GPU counts, and the step that sbatch was called in, are emptied; task counts (which srun refuses empty) and
    other variables are kept."""
    kept = {"SLURM_NTASKS": "4", "HOME": "/home/x"}
    environment = {**kept, "SLURM_GPUS": "v100:4", "SLURM_GPUS_PER_TASK": "v100:2", "SLURM_STEP_ID": "0"}

    answer = lua.call("submit", **submitted_job(comment="hadar:", environment=environment, num_tasks=4))

    emptied = {"SLURM_GPUS": "", "SLURM_STEP_ID": ""}
    assert answer.environment == {**kept, **emptied, "SLURM_GPUS_PER_TASK": "2", "HADAR_MANAGED": "1"}


@pytest.mark.parametrize(
    ("asked", "own"), [({}, False), ({"num_tasks": 2}, True), ({"num_tasks": UNSET, "ntasks_per_node": 2}, True)]
)
def test_a_task_count_that_is_not_the_jobs_own_is_marked(lua: Any, asked: dict[str, int], own: bool) -> None:
    """sbatch has passed on that of the job which it was called in, and it may itself have been marked."""
    none = {"num_tasks": UNSET, "ntasks_per_node": 65534, "ntasks_per_socket": 65534}
    environment = {"SLURM_NTASKS": "1", "HADAR_NO_TASKS": "1"}

    answer = lua.call("submit", **submitted_job(comment="hadar:", environment=environment, **{**none, **asked}))

    assert answer.environment["HADAR_NO_TASKS"] == ("" if own else "1") and answer.environment["SLURM_NTASKS"] == "1"


def test_what_srun_is_to_give_each_task_has_no_type(lua: Any) -> None:
    """From 23.11 on sbatch keeps that in a variable of its own: with a type, srun fails on any other."""
    environment = {"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu:v100=2"}

    answer = lua.call("submit", **submitted_job(comment="hadar:", environment=environment))

    assert answer.environment == {"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu=2", "HADAR_MANAGED": "1"}


def test_other_jobs_pass_untouched(lua: Any) -> None:
    """No hadar: comment, no change; not even with a nodelist or a typed request."""
    for text in (None, "", "mine", " hadar:model=x", "Hadar:x"):
        job = submitted_job(tres_per_node="gres:gpu:v100:2", req_nodes="v100-1", environment={"SLURM_GPUS": "4"})
        job |= {} if text is None else {"comment": text}

        answer = lua.call("submit", **job)

        assert answer.accepted and not answer.logged
        assert bool(answer.said) is (text in (" hadar:model=x", "Hadar:x"))
        assert answer.environment == {"SLURM_GPUS": "4"}
        expected = {k: str(v) for k, v in job.items() if k != "environment"}
        assert answer.job == expected


def test_a_nested_plain_job_loses_the_inherited_mark(lua: Any) -> None:
    """A plain job submitted from inside a hadar job is not treated as one."""
    answer = lua.call("submit", **submitted_job(environment={"HADAR_MANAGED": "1", "SLURM_GPUS": "4"}))

    assert answer.environment == {"HADAR_MANAGED": "", "SLURM_GPUS": "4"}


@pytest.mark.parametrize("extra", [{"script": ""}, {"comment": "hadar:pin=yes"}])
def test_jobs_that_cannot_or_must_not_be_steered_are_only_read(lua: Any, extra: dict[str, str]) -> None:
    """srun and salloc jobs, and pinned ones, keep their typed request and their nodelist."""
    job = submitted_job(comment="hadar:model=m", tres_per_node="gres:gpu:v100:2", req_nodes="v100-1") | extra

    answer = lua.call("submit", **job)

    assert answer.accepted
    assert answer.job == {k: str(v) for k, v in job.items()}


def test_nodelist_is_refused_with_advice(lua: Any) -> None:
    """A nodelist on a steerable job is refused, and the message says what to do instead."""
    answer = lua.call("submit", **submitted_job(comment="hadar:model=m", req_nodes="v100-1"))

    assert not answer.accepted
    assert re.search(r"--nodelist .*pin=yes.*types=v100", answer.said[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Hadar:model=m", True), ("hadar,model=m", True), (" hadar:model=m", True), ("HADAR", True),
        ("hadar model", True),
        ("hadar:model=m", False), ("hadarian", False), ("my hadar: job", False), ("", False),
    ],
)  # fmt: skip
def test_a_comment_that_looks_like_ours_is_told_of(lua: Any, text: str, said: bool) -> None:
    """It passes, and its owner learns that it is not steered."""
    answer = lua.call("submit", **submitted_job(comment=text, time_limit=UNSET))

    assert answer.accepted
    assert (len(answer.said), any("does not begin with hadar:" in line for line in answer.said)) == (int(said), said)


@pytest.mark.parametrize("limit", ["types=v100", "mem=32g"])
@pytest.mark.parametrize(("lease", "waits"), [(0, 900), (30, 900), (1000, 1000)])
def test_a_job_for_some_types_waits_for_the_controller(
    make_lua: Callable[..., Any], lease: int, waits: int, limit: str
) -> None:
    """Slurm itself would start it on any GPU type."""
    answer = make_lua(f"LEASE_S = {lease}").call("submit", **submitted_job(comment=f"hadar:{limit}"))

    assert answer.job["comment"] == f"hadar:{limit},lease={waits}"
    assert abs(int(answer.job["begin_time"]) - time.time() - waits) < 60


@pytest.mark.parametrize(("begin", "deferred"), [(0, True), (4102444800, False)])
def test_start_lease(make_lua: Callable[..., Any], begin: int, deferred: bool) -> None:
    """With LEASE_S a new job starts later, but never earlier than its user said; without, nothing changes."""
    leased = make_lua("LEASE_S = 30")
    plain = make_lua()

    with_lease = leased.call("submit", **submitted_job(comment="hadar:") | {"begin_time": begin})
    without = plain.call("submit", **submitted_job(comment="hadar:") | {"begin_time": begin})

    assert (with_lease.job["begin_time"] != str(begin)) is deferred
    assert with_lease.job["comment"] == ("hadar:lease=30" if deferred else "hadar:"), "the controller must know"
    assert without.job["begin_time"] == str(begin)


def test_a_failure_of_the_script_costs_nobody_asubmitted(make_lua: Callable[..., Any]) -> None:
    """An internal error is logged, the job passes, and nothing of it was changed half-way."""
    broken = make_lua("function hadar_parse() error('broken on purpose') end")
    # os.time fails after part of the plan was made
    halfway = make_lua("LEASE_S = 1; os.time = function() error('no clock') end")
    job = submitted_job(comment="hadar:model=m", tres_per_node="gres:gpu:v100:2")

    for state, reason in ((broken, "broken on purpose"), (halfway, "no clock")):
        answer = state.call("submit", **job)

        assert answer.accepted
        assert len(answer.logged) == 1 and reason in answer.logged[0]
        assert answer.job == {k: str(v) for k, v in job.items()}


def test_modify_lets_steering_pass(lua: Any) -> None:
    """Updates without a comment, or with one of somebody else, pass."""
    for change in ({"req_nodes": "v100-1"}, {"comment": ""}, {"comment": "mine"}, {"begin_time": 5}):
        assert lua.call("modify", **change).accepted


@pytest.mark.parametrize("note", ["lease=10", "asked=4/2/2/8", f"asked=4/2/2/8/{MAC}"])
def test_what_the_scheduler_writes_no_user_submits(lua: Any, note: str) -> None:
    """Refused with the key's name, for jobs that are left alone too."""
    for job in ({}, {"script": ""}, {"comment": f"hadar:pin=yes,{note}"}):
        answer = lua.call("submit", **submitted_job(comment=f"hadar:model=m,{note}") | job)

        assert not answer.accepted and not answer.logged
        assert answer.said == [
            f"hadar: {note.split('=')[0]}= in the hadar: comment is for the scheduler to write; leave it out"
        ]


@pytest.mark.parametrize(
    ("present", "new", "accepted"),
    [
        ("hadar:lease=10", "hadar:lease=10,steps=5", True),
        ("hadar:lease=10", "hadar:steps=5", True),
        ("hadar:lease=10", "hadar:lease=11", False),
        ("hadar:", "hadar:lease=10", False),
        ("", "hadar:lease=10", False),
        ("hadar:asked=4/2/2/8", "hadar:asked=4/2/2/8,steps=5", True),
        ("hadar:asked=4/2/2/8", "hadar:asked=4/2/2/16", False),
        ("hadar:lease=x,asked=4/2/2/8", "hadar:asked=4/2/2/8", False),
        ("hadar:", "hadar:asked=4/2/2/8", False),
        ("hadar:", f"hadar:asked=4/2/2/8/{MAC}", True),  # an Operator's, or a forgery that the controller sees through
        (f"hadar:asked=4/2/2/8/{MAC}", "hadar:asked=4/2/2/8", False),
        ("hadar:", "hadar:key=0123456789abcdef", True),
    ],
)
def test_what_the_scheduler_writes_no_user_changes(lua: Any, present: str, new: str, accepted: bool) -> None:
    """It may stay as it is, or go; root may write anything."""
    answer = lua.call("modify", present=present, comment=new)

    assert answer.accepted is accepted and not answer.logged
    assert accepted or "is for the scheduler to write" in answer.said[0]
    assert lua.call("modify", present=present, comment=new, uid=0).accepted


def test_no_room_for_what_is_added(lua: Any) -> None:
    """A comment that would become too long to be read is refused at once, not found unreadable later."""
    full = "hadar:model=" + "a" * 64 + ",types=" + "+".join(["b" * 60] * 32)

    assert lua.call("submit", **submitted_job(comment=full)).accepted
    answer = lua.call("submit", **submitted_job(comment=full, tres_per_node="gres:gpu:" + "v" * 64 + ":2"))
    assert not answer.accepted and "at most 2048 are read; some are added" in answer.said[0]


_PIECES_OF_LONG_TEXTS = [*" ,=+-/:.09a\n\x1f\xe9", "ab=,", "gpu:1,", "gres:gpu:v100:1,", "0."]


@pytest.mark.parametrize("after", ["", pytest.param("x:", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("piece", _PIECES_OF_LONG_TEXTS)
def test_nothing_that_a_user_writes_takes_long(lua: Any, piece: str, after: str) -> None:
    """A megabyte of anything, anywhere, costs under 10 ms: slurmctld holds its locks meanwhile."""
    endless, most = Endless(piece, 10**6, after=after), comment.MOST_BYTES
    fields = ["tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket"]
    comments = [endless, replace(endless, before="hadar:"), Endless(piece, most - 8, "hadar:", after)]
    comments += [Endless(piece, most - 40, f"hadar:{key}=", after) for key in comment.KEYS]
    jobs: list[dict[str, Any]] = [{"comment": text} for text in comments]
    jobs += [{"min_nodes": 1, "max_nodes": 1, field: endless} for field in fields]
    jobs += [{field: Endless(piece, most - 40, "gres:gpu:", after)} for field in fields]
    jobs += [{"environment": {"SLURM_GPUS_PER_TASK": endless, "SLURM_GPUS": endless}}]
    jobs += [{"script": endless, "req_nodes": endless}]
    for job in jobs:
        submitted = lua.call("submit", **submitted_job(comment="hadar:") | job)
        assert submitted.cpu_s < 0.01, job
    for text in comments:
        assert lua.call("modify", present=text, comment=text).cpu_s < 0.01, text


@pytest.mark.parametrize(
    ("comment_", "minutes", "said"),
    [("hadar:model=m", 120, True), ("hadar:requeue_on_timeout=yes", 120, False), ("hadar:", 4294967294, False),
     ("hadar:", 4294967295, False), ("hadar:requeue_on_timeout=no", 120, False), ("hadar:pin=yes", 120, False),
     ("mine", 120, False)],
)  # fmt: skip
def test_a_time_limit_is_told_of_at_submission(lua: Any, comment_: str, minutes: int, said: bool) -> None:
    """Once, to those who set one and have not said what shall happen there."""
    answer = lua.call("submit", **submitted_job(comment=comment_, time_limit=minutes))

    assert answer.accepted and bool(answer.said) is said
    assert not said or ("limit of 120 min" in answer.said[0] and "requeue_on_timeout=yes" in answer.said[0])


_CONF = """
ClusterName=c  # Gres=gpu:fake:1
GresTypes=gpu
NodeName=DEFAULT Gres=gpu:p100:4
NodeName=a[1-4] CPUs=8 \\
    Gres=gpu:v100:4,gpu:k80:2(S:0),mps:100
NodeName=b1 Gres=gpu:4
NodeName=e1 Gres=gpu:3090:4(S:0-1),gpu:1080ti
# NodeName=c1 Gres=gpu:none:1
Include {include}
"""


_THERE = "there are: 1080ti, 3090, a100, k80, p100, v100"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "more.conf").write_text('nodename=d1 gres="gpu:a100:8"\n')
    path = tmp_path / "slurm.conf"
    path.write_text(_CONF.format(include="more.conf"))
    return path


def _types(make_lua: Callable[..., Any], conf: Path) -> Any:
    return make_lua(f'GPU_TYPES = hadar_gpu_types("{conf}")')


@pytest.mark.parametrize(
    ("comment_", "gres", "said"),
    [
        ("hadar:types=v100+k80", "gpu:1", []),
        ("hadar:types=3090", "gpu:1080ti:1", []),
        ("hadar:types=h100", "gpu:1",
         [f"hadar: no node here has GPU type h100, so this job waits until one has; {_THERE}"]),
        ("hadar:types=h100+v100", "gpu:1",
         [f"hadar: no node here has GPU type h100, which types= names; {_THERE}"]),
        ("hadar:", "gpu:b200:1",
         [f"hadar: no node here has GPU type b200, which prefer= names; {_THERE}"]),
        ("hadar:pin=yes,types=h100", "gpu:1", []),
        ("mine", "gpu:b200:1", []),
    ],
)  # fmt: skip
def test_gpu_types_that_are_nowhere_are_told_of(
    make_lua: Callable[..., Any], conf: Path, comment_: str, gres: str, said: list[str]
) -> None:
    answer = _types(make_lua, conf).call("submit", **submitted_job(comment=comment_, tres_per_node=gres))
    assert answer.accepted and answer.said == said


@pytest.mark.parametrize("line", ["MaxNodeCount=100", "Include missing.conf", "Include slurm.conf"])
def test_nothing_is_said_where_not_all_nodes_are_known(make_lua: Callable[..., Any], conf: Path, line: str) -> None:
    """Nodes that come by themselves, files that cannot be read or that include one another."""
    conf.write_text(f"{conf.read_text()}{line}\n")
    assert _types(make_lua, conf).call("submit", **submitted_job(comment="hadar:types=h100")).said == []
