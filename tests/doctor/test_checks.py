"""Every check of the doctor, well and not well, by what a Slurm and a host may be like."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import Config, load
from slurm_hadar.doctor.examine import AWAY, CHECKS, judge
from slurm_hadar.doctor.finding import Finding, Verdict
from slurm_hadar.doctor.host import Host
from slurm_hadar.model import Partition
from slurm_hadar.slurm.backend.cli import HIDDEN
from slurm_hadar.slurm.state import ClusterState, Daemon, GpuRequest, SlurmJob, SlurmNode
from slurm_hadar.slurm.survey import COMMANDS, Survey, Unknown
from slurm_hadar.testing.fake_slurm import FakeSlurm

SCRIPT = "LEASE_S = 0\nfunction hadar_parse(comment) end\n"
GOOD = {
    "ClusterName": "site", "SlurmUser": "slurm(64030)", "SlurmctldParameters": "", "KillWait": "30 sec",
    "SchedulerParameters": "bf_interval=5,bf_continue", "AuthInfo": "", "JobRequeue": "1", "JobFileAppend": "1",
    "AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStoreFlags": "job_comment,job_env",
    "AccountingStorageTRES": "cpu,mem,gres/gpu,gres/gpu:a100", "PriorityType": "priority/multifactor",
    "SchedulerType": "sched/backfill", "PreemptMode": "OFF", "PreemptType": "preempt/none",
    "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CORE", "TaskPlugin": "task/affinity,task/cgroup",
    "ConstrainDevices": "yes", "GresTypes": "gpu", "JobSubmitPlugins": "lua", "TaskProlog": "/etc/slurm/task_prolog.sh",
    "SLURM_CONF": "/etc/slurm/slurm.conf", "SuspendProgram": "/etc/slurm/off", "SuspendTime": "600 sec",
    "ResumeTimeout": "300 sec", "PrivateData": "cloud",
}  # fmt: skip
NODES = (SlurmNode("a1", (("a100", 4),), partitions=("gpu",)), SlurmNode("v1", (("v100", 4),), partitions=("gpu",)))


def job(comment: str = "hadar:", types: tuple[tuple[str, int], ...] = (("", 2),), job_id: str = "7") -> SlurmJob:
    """A pending job that asks for GPUs."""
    slurm = FakeSlurm({})
    made = slurm.jobs[slurm.submit(comment=comment, user="eve", partition="gpu", work_dir="/home/eve", name="train")]
    return replace(made, job_id=job_id, raw_id=int(job_id), gpus=(GpuRequest("node", types),))


def state(jobs: tuple[SlurmJob, ...] = (), nodes: tuple[SlurmNode, ...] = NODES, read_s: float = 0.1) -> ClusterState:
    return ClusterState(1e9, jobs, nodes, (Partition("gpu", tuple(n.name for n in nodes)),), read_s)


def slurm(settings: dict[str, str | None] | None = None, **facts: Any) -> Survey:
    """A Slurm that all is well with, but for ``settings`` (None = not shown) and ``facts``."""
    merged = {k: v for k, v in {**GOOD, **(settings or {})}.items() if v is not None}
    well = Survey(
        "hadar",
        990,
        (22, 5, 8),
        "site head 6817",
        merged,
        (Daemon("primary", "head", True),),
        state((job(),)),
        (-0.4, 0.6),
        (1e9 - 100, "a1"),
        ("Operator", ()),
        True,
        (),
    )
    return replace(well, **facts)


def host(config: Config | None = None, **facts: Any) -> Host:
    well = Host(
        config or Config(),
        python="3.11.7",
        slurmctld=frozenset({"head"}),
        state_dir=Path("/var/lib/slurm-hadar"),
        state_fs="ext4",
        channel_bind="tcp://*:5557",
        channel_host="head",
        host_addresses=("10.0.0.1",),
        channel_file=Path("/etc/slurm/hadar-channel.json"),
        pyslurm="pyslurm is not installed",
        job_submit=SCRIPT,
        own_script=SCRIPT,
        work_dirs={"/home/eve": True},
    )
    return replace(well, **facts)


def findings(survey: Survey | Unknown, on: Host) -> dict[str, Finding]:
    return {f.check: f for f in judge(survey, replace(on, slurm=survey))}


ACT = ("controller.mode=act",)
TYPED = job(types=(("v100", 2),))
BROKEN = "slurmctld did not answer"
# check, verdict, settings of Slurm, its other facts, of this host, of our configuration, and words of what is found
BAD: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...], str]] = [
    ("version", "problem", {}, {"version": (20, 11, 9)}, {}, (), "20.11.9, older than 22.05"),
    ("version", "note", {}, {"version": (23, 11, 4)}, {}, (), "tested on 22.05, 24.11, 26.05 only"),
    ("version", "warning", {}, {"version": (27, 5, 0)}, {}, (), "newer than any"),
    ("version", "unknown", {}, {"version": Unknown("odd")}, {}, (), "cannot tell: odd"),
    ("daemons", "warning", {}, {"daemons": (Daemon("primary", "head", True), Daemon("backup", "b", False))}, {}, (),
     "down on b"),
    ("daemons", "unknown", {}, {"daemons": Unknown(BROKEN)}, {}, (), BROKEN),
    ("commands", "problem", {}, {"missing": ("scancel",)}, {}, (), "scancel"),
    ("commands", "note", {}, {"missing": ("sacct",)}, {}, (), "works without"),
    ("complaints", "note", {}, {"noise": ("Ignoring ControlMachine", "more")}, {}, (),
     "works: 'Ignoring ControlMachine', and 1 more"),
    ("reads", "problem", {}, {"state": Unknown("squeue output is cut short")}, {}, (), "cut short"),
    ("reads", "problem", {}, {"state": Unknown(f"sinfo failed: denied; {HIDDEN}")}, {}, (), "PrivateData"),
    ("reads", "warning", {}, {"state": state(read_s=9)}, {}, (), "9000 ms"),
    ("reads", "warning", {"PrivateData": "jobs,usage"}, {"admin_level": ("None", ())}, {}, (), "hides others' jobs"),
    ("reads", "unknown", {"PrivateData": "jobs"}, {"admin_level": Unknown("slurmdbd hangs", away=True)}, {}, (),
     "whether PrivateData hides others' jobs"),
    ("rights", "problem", {}, {"admin_level": ("None", ())}, {}, ACT, "their own jobs only"),
    ("rights", "warning", {}, {"admin_level": ("None", ())}, {}, (), "their own jobs only"),
    ("rights", "warning", {}, {"admin_level": ("None", ("lab",))}, {}, ACT, "of the accounts lab"),
    ("rights", "unknown", {}, {"admin_level": Unknown("slurmdbd is away")}, {}, ACT, "slurmdbd is away"),
    ("rate_limit", "note", {"SlurmctldParameters": "rl_enable"}, {}, {}, (), "30 calls at once and 2 more"),
    ("rate_limit", "warning", {"SlurmctldParameters": "rl_enable,rl_bucket_size=5"}, {}, {}, (), "5 calls at once"),
    ("rate_limit", "unknown", {"SlurmctldParameters": None}, {}, {}, (), "names no SlurmctldParameters"),
    ("kill_wait", "warning", {"KillWait": "120 sec"}, {}, {}, (), "KillWait = 120 s"),
    ("kill_wait", "unknown", {"KillWait": "soon"}, {}, {}, (), "is no number"),
    ("requeue_delay", "note", {"AuthInfo": "cred_expire=600"}, {}, {}, (), "600 s"),
    ("requeue_delay", "unknown", {"SchedulerParameters": None}, {}, {}, (), "SchedulerParameters"),
    ("job_requeue", "warning", {"JobRequeue": "0"}, {}, {}, (), "--requeue"),
    ("append", "note", {"JobFileAppend": "0"}, {}, {}, (), "--open-mode=append"),
    ("power_saving", "note", {"PrivateData": "none"}, {}, {}, (), "cloud nodes that are off"),
    ("power_saving", "unknown", {"ResumeTimeout": None}, {}, {}, (), "ResumeTimeout"),
    ("accounting", "note", {"AccountingStorageType": "accounting_storage/none"}, {"accounting": False}, {}, (),
     "keeps no accounts"),
    ("accounting", "warning", {}, {"accounting": Unknown("connection refused")}, {}, (), "connection refused"),
    ("job_comments", "note", {"AccountingStoreFlags": ""}, {}, {}, (), "knows no models"),
    ("job_comments", "unknown", {}, {"accounting": False}, {}, (), "keeps no accounts"),
    ("accounted_gpus", "warning", {"AccountingStorageTRES": "cpu,mem"}, {}, {}, (), "see none"),
    ("accounted_gpus", "note", {"AccountingStorageTRES": "cpu,gres/gpu"}, {}, {}, (), "not their types"),
    ("priority", "note", {"PriorityType": "priority/basic"}, {}, {}, (), "priority/basic"),
    ("scheduler", "warning", {"SchedulerType": "sched/builtin"}, {}, {}, (), "sched/builtin"),
    ("scheduler", "note", {"SchedulerParameters": ""}, {}, {}, (), "every 30 s"),
    ("preemption", "warning", {"PreemptMode": "GANG,SUSPEND", "PreemptType": "preempt/qos"}, {}, {}, (),
     "keeps its GPUs"),
    ("preemption", "warning", {"PreemptMode": "GANG"}, {}, {}, (), "suspends jobs by turns"),
    ("preemption", "warning", {"PreemptMode": "CANCEL", "PreemptType": "preempt/qos"}, {}, {}, (), "for good"),
    ("preemption", "note", {"PreemptMode": "REQUEUE", "PreemptType": "preempt/qos"}, {}, {}, (), "without asking"),
    ("select", "problem", {"SelectType": "select/linear"}, {}, {}, (), "does not hand out single GPUs"),
    ("select", "unknown", {"SelectType": "select/cray_aries"}, {}, {}, (), "rests on another plug-in"),
    ("select", "note", {"SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerNode": "UNLIMITED"}, {}, {}, (),
     "takes all of its node's"),
    ("tasks", "note", {"TaskPlugin": "task/none"}, {}, {}, (), "nothing keeps"),
    ("tasks", "note", {"TaskPlugin": ""}, {}, {}, (), "TaskPlugin = (null): nothing keeps"),
    ("tasks", "note", {"ConstrainDevices": "no"}, {}, {}, (), "ConstrainDevices = no"),
    ("tasks", "unknown", {"ConstrainDevices": None}, {}, {}, (), "does not show"),
    ("clock", "warning", {}, {"clock_ahead_s": (20.0, 21.0)}, {}, (), "20.0 s ahead of"),
    ("clock", "problem", {}, {"clock_ahead_s": (-901.0, -900.0)}, {}, (), "900.0 s behind"),
    ("clock", "note", {}, {"clock_ahead_s": (0.5, 1.5)}, {}, (), "0.5 s ahead"),
    ("clock", "unknown", {}, {"clock_ahead_s": Unknown("sdiag shows no time")}, {}, (), "sdiag"),
    ("node_clocks", "unknown", {}, {}, {}, (), "shows no node's clock"),
    ("node_clocks", "warning", {}, {"latest_start": (1e9 + 50, "v1")}, {}, (),
     "v1 says it was started 49 s in the future"),
    ("gpu_types", "problem", {"GresTypes": ""}, {}, {}, (), "knows of no GPUs"),
    ("gpu_types", "problem", {}, {"state": state(nodes=(SlurmNode("c1"),))}, {}, (), "no node has a GPU"),
    ("gpu_types", "warning", {}, {"state": state(nodes=(SlurmNode("x", (("gpu", 4),)),))}, {}, (),
     "without a type on x"),
    ("gpu_types", "warning", {}, {"state": state(nodes=(SlurmNode("x", (("k80", 2), ("v100", 2))),))}, {}, (),
     "several"),
    ("shards", "warning", {"GresTypes": "gpu,shard"}, {}, {}, (), "no node has any"),
    ("shards", "warning", {"GresTypes": "gpu,shard"}, {"state": state(nodes=(replace(NODES[0], shards=7),))}, {}, (),
     "no multiple of its GPUs"),
    ("shards", "problem", {"GresTypes": "gpu,shard", "SelectType": "select/linear"},
     {"state": state(nodes=(replace(NODES[0], shards=8),))}, {}, (), "gives no shards"),
    ("shards", "warning", {"GresTypes": "gpu,shard", "JobContainerType": "job_container/tmpfs"},
     {"state": state(nodes=(replace(NODES[0], shards=8),))}, {}, (), "a /tmp of its own"),
    ("gpu_types", "note", {}, {"state": state(nodes=NODES[:1])}, {}, (), "one GPU type only"),
    ("nodes", "note", {}, {"state": state(nodes=(replace(NODES[0], available=False, reason="fan"),))}, {}, (),
     "a1 (fan)"),
    ("nodes",
     "warning", {}, {"state": state(nodes=(replace(NODES[0], available=False, reason="Kill task failed"),))}, {},
     (), "do not come back"),
    ("partitions", "warning", {}, {}, {}, ("partitions.gpux.mode=act",), "names gpux, which Slurm does not have"),
    ("gpu_memory", "note", {}, {"state": state(nodes=(SlurmNode("x", (("new", 4),)),))}, {}, (),
     "new has: jobs with mem="),
    ("gpu_memory", "unknown", {}, {"state": state(nodes=(SlurmNode("x"),))}, {}, (), "no node has a GPU"),
    ("comments", "warning", {}, {"state": state((job(comment="Hadar:model=x"),))}, {}, (), "left alone, since"),
    ("comments", "warning", {}, {"state": state((job(comment="hadar:what=x"),))}, {}, (), "cannot be read"),
    ("comments", "warning", {}, {"state": state((job(comment="hadar:types=h100"),))}, {}, (), "starts them nowhere"),
    ("comments", "unknown", {}, {"state": state()}, {}, (), "no job with a hadar: comment"),
    ("comments", "warning", {}, {"state": state((job("hadar:mem=80g"),))}, {}, (), "a100 has 40 GB"),
    ("typed_jobs", "warning", {}, {"state": state((TYPED,))}, {}, (), "1 job (7) of hadar: name"),
    ("typed_jobs", "note", {}, {"state": state((replace(TYPED, comment=""),))}, {}, (), "without a hadar: comment"),
    ("typed_jobs", "unknown", {}, {"state": state()}, {}, (), "no job with GPUs"),
    ("packages", "problem", {}, {}, {"packages": ("pyzmq (missing, needs 25)",)}, (), "lacks pyzmq"),
    ("packages", "unknown", {}, {}, {"packages": Unknown("not installed")}, (), "not installed"),
    ("config", "problem", {}, {}, {"config_error": "x.toml: unknown key guard.x"}, (),
     "unknown key guard.x (the other"),
    ("config", "problem", {}, {}, {"policy_error": "no policy is called 'x'"}, (), "no policy"),
    ("config", "warning", {}, {}, {"plugin_errors": ("policy plug-in x: broken",)}, (), "broken"),
    ("config", "warning", {}, {}, {"no_users": ("alcie",)}, (), "names alcie, unknown on this host"),
    ("config", "warning", {}, {}, {"metrics_faults": ("metrics.listen: :9641: Address already in use",)}, (),
     "9641: Address already in use"),
    ("config", "warning", {}, {}, {"hook_fault": "mial_user.sh is no program"}, (), "hooks.moved: mial_user.sh"),
    ("state_dir", "problem", {}, {}, {"state_fault": "/var/lib is not writable"}, (), "not writable"),
    ("state_dir", "problem", {}, {}, {"state_files": {Path("/var/lib/x/journal.db"): "journal.db is of user root"}}, (),
     "journal.db is of user root"),
    ("state_dir", "warning", {}, {}, {"state_fs": "nfs4"}, (), "on nfs4"),
    ("state_dir", "unknown", {}, {}, {"state_fs": Unknown("no mounts")}, (), "no mounts"),
    ("lock", "note", {}, {}, {"lock_holder": "process 9"}, (), "process 9"),
    ("lock", "unknown", {}, {}, {"lock_holder": Unknown("/proc/locks cannot be read")}, (), "/proc/locks"),
    ("primary", "note", {}, {"daemons": (Daemon("primary", "other", True),)}, {}, (), "runs no slurmctld; other does"),
    ("primary", "note", {}, {"daemons": (Daemon("primary", "other", True), Daemon("backup", "head", True))}, {}, (),
     "is a backup of slurmctld; other acts, and a controller here stands by"),
    ("primary", "warning", {}, {"daemons": (Daemon("primary", "other", True), Daemon("backup", "head", True))}, {},
     ("controller.ha=any",), "is a backup of slurmctld; other acts"),
    ("primary", "warning", {}, {"daemons": (Daemon("primary", "x", False), Daemon("backup", "y", True))}, {}, (),
     "none of those of slurmctld (x, y): a controller here acts whichever of them does (now y)"),
    ("primary", "unknown", {}, {"daemons": (Daemon("primary", "head", False),)}, {}, (), "no slurmctld is up"),
    ("channel", "note", {}, {}, {}, ("channel.enabled=false",), "spool files"),
    ("channel", "problem", {}, {}, {"channel_fault": "/etc is not writable"}, (), "cannot be written"),
    ("channel", "problem", {}, {}, {"port_fault": "tcp://*:5557: Address already in use"}, (), "already in use"),
    ("channel", "warning", {}, {}, {"found_by_jobs": False}, (), "do not look for"),
    ("channel", "warning", {}, {}, {"host_addresses": Unknown("head does not resolve")}, (), "does not resolve"),
    ("channel", "warning", {}, {}, {"host_addresses": ("127.0.1.1", "::1")}, (), "the node itself"),
    ("channel", "note", {}, {}, {"channel_bind": "tcp://*:*"}, (), "a firewall needs a fixed one"),
    ("pyslurm", "problem", {}, {}, {}, ("slurm.backend=pyslurm",), "but pyslurm is not installed"),
    ("pyslurm", "note", {}, {}, {"pyslurm_version": "25.11.2", "pyslurm": "is for 25.11"}, (),
     "not used: is for 25.11"),
    ("work_dirs", "note", {}, {}, {"work_dirs": {"/a": True, "/b": False}}, (), "1 of 2"),
    ("work_dirs", "unknown", {}, {}, {"work_dirs": {}}, (), "no job with a hadar: comment"),
    ("work_dirs", "unknown", {}, {}, {"work_dirs": Unknown("is a file server away?")}, (), "file server"),
    ("job_submit", "note", {"JobSubmitPlugins": ""}, {}, {}, (), "not installed"),
    ("job_submit", "note", {}, {}, {"job_submit": "-- the site's"}, (), "of its own"),
    ("job_submit", "warning", {}, {}, {"job_submit": "-- the site's\n" + SCRIPT}, (), "functions of ours in it"),
    ("job_submit", "warning", {}, {}, {"job_submit": SCRIPT + "-- older"}, (), "not the text that comes with"),
    ("job_submit", "unknown", {}, {}, {"job_submit": Unknown("/etc/slurm/job_submit.lua: Permission denied")}, (),
     "Permission denied"),
    ("job_submit", "note", {}, {}, {"job_submit": SCRIPT.replace("= 0", "= 60 -- ours")}, (), "below round_s = 360"),
    ("task_prolog", "note", {"TaskProlog": ""}, {}, {}, (), "no TaskProlog"),
    ("task_prolog", "unknown", {"TaskProlog": "/etc/site.sh"}, {}, {}, (), "whether it clears"),
]  # fmt: skip


def test_all_is_well_where_all_is_well() -> None:
    """A site as the documentation would have it: every check is ok but the one that Slurm cannot answer."""
    found = findings(slurm(), host())

    assert tuple(found) == CHECKS
    assert {name: f.found for name, f in found.items() if f.verdict is not Verdict.OK}.keys() == {"node_clocks"}


@pytest.mark.parametrize(
    ("check", "verdict", "settings", "facts", "of_host", "config", "words"),
    BAD,
    ids=[f"{row[0]}-{row[1]}-{row[6][:20]}" for row in BAD],
)
def test_what_is_not_well_is_found(
    check: str,
    verdict: str,
    settings: dict[str, Any],
    facts: dict[str, Any],
    of_host: dict[str, Any],
    config: tuple[str, ...],
    words: str,
) -> None:
    """One thing is amiss: its check says so, with the reason, a fix for what is bad, and no check fails."""
    found = findings(slurm(settings, **facts), host(load(None, config), **of_host))[check]

    assert (found.verdict, words in found.found) == (verdict, True), found
    assert found.why.endswith(".") and found.link == f"docs/admin.md#doctor-{check}"
    assert found.fix or verdict in ("note", "unknown")


@pytest.mark.parametrize(
    ("check", "settings", "line"),
    [
        (
            "rate_limit",
            {"SlurmctldParameters": "idle_on_node_suspend,rl_enable,RL_bucket_size=5"},
            "SlurmctldParameters=idle_on_node_suspend,rl_enable,rl_bucket_size=30",
        ),
        (
            "requeue_delay",
            {"AuthInfo": "socket=/run/munge/munge.socket.2,cred_expire=600"},
            "AuthInfo=socket=/run/munge/munge.socket.2,cred_expire=120",
        ),
        (
            "requeue_delay",
            {"AuthInfo": "cred_expire=60", "SchedulerParameters": "bf_continue,requeue_delay=600"},
            "SchedulerParameters=bf_continue,requeue_delay=120",
        ),
        ("job_comments", {"AccountingStoreFlags": "job_env"}, "AccountingStoreFlags=job_env,job_comment"),
        (
            "accounted_gpus",
            {"AccountingStorageTRES": "cpu,license/matlab"},
            "AccountingStorageTRES=cpu,license/matlab,gres/gpu,gres/gpu:a100,gres/gpu:v100",
        ),
        (
            "scheduler",
            {"SchedulerParameters": "bf_continue,bf_interval=60"},
            "SchedulerParameters=bf_continue,bf_interval=10",
        ),
        ("job_submit", {"JobSubmitPlugins": "throttle"}, "JobSubmitPlugins=throttle,lua"),
        ("gpu_types", {"GresTypes": "mps"}, "GresTypes=mps,gpu"),
        ("power_saving", {"PrivateData": "jobs", "SuspendProgram": "/x"}, "PrivateData=jobs,cloud"),
    ],
)
def test_a_line_that_is_told_keeps_what_the_site_has(check: str, settings: dict[str, Any], line: str) -> None:
    """Whoever copies it would lose the rest; and it is the setting that counts."""
    found = findings(slurm(settings), host())[check]

    assert found.fix.partition("    #")[0] == line


def test_power_saving_without_a_time_switches_nothing_off() -> None:
    found = findings(slurm({"SuspendTime": "INFINITE", "PrivateData": "none"}), host())["power_saving"]

    assert found.verdict == "ok" and found.found.startswith("Slurm switches no nodes off")


def test_the_full_name_of_the_plug_in_is_its_name_too() -> None:
    """As Slurm takes it."""
    found = findings(slurm({"JobSubmitPlugins": "throttle,job_submit/lua"}), host())["job_submit"]

    assert (found.verdict, found.found) == ("ok", "job_submit.lua is that of this version")


def test_where_slurm_switches_nothing_off_cloud_nodes_are_no_matter() -> None:
    found = findings(slurm({"SuspendProgram": "(null)", "PrivateData": "none"}), host())["power_saving"]

    assert (found.verdict, found.found) == ("ok", "Slurm switches no nodes off")


def test_every_check_is_seen_in_both_verdicts() -> None:
    """No check is left out of the table above."""
    assert {row[0] for row in BAD} == set(CHECKS) - {"slurm"}


@pytest.mark.parametrize(
    ("facts", "config", "words"),
    [
        ({"uid": 0, "user": "root"}, ACT, "(root)"),
        ({"uid": 64030, "user": "slurm"}, ACT, "(SlurmUser)"),
        ({"admin_level": ("Administrator", ())}, ACT, "Operator would be enough"),
        (
            {"admin_level": ("None", ())},
            (*ACT, 'controller.users=["hadar"]'),
            "their own jobs only, which every user may",
        ),
    ],
)
def test_who_has_rights_enough(facts: dict[str, Any], config: tuple[str, ...], words: str) -> None:
    """root, SlurmUser, operators and administrators; and everybody for their own jobs."""
    found = findings(slurm(**facts), host(load(None, config)))["rights"]

    assert found.verdict is Verdict.OK and words in found.found


@pytest.mark.parametrize(
    ("level", "words"),
    [("None", "sacctmgr modify user hadar set AdminLevel=Operator"),
     ("", "sacctmgr add user hadar account=root adminlevel=Operator")],
)  # fmt: skip
def test_how_a_user_becomes_an_operator(level: str, words: str) -> None:
    """sacctmgr modifies nothing of a user whom the database does not know."""
    found = findings(slurm({"PrivateData": "jobs"}, admin_level=(level, ())), host())

    assert found["rights"].ask.endswith(words) or found["rights"].fix.endswith(words)
    assert words in (found["reads"].ask, found["reads"].fix)


def test_without_slurm_there_is_one_line_about_it() -> None:
    """The host is judged all the same; nothing is said to be ok that could not be looked at."""
    found = findings(Unknown("scontrol is not on PATH"), host())

    assert tuple(sorted(found)) == tuple(sorted(CHECKS))
    assert (found["slurm"].verdict, found["slurm"].found) == (Verdict.PROBLEM, "scontrol is not on PATH")
    rest = [f for f in found.values() if f.check not in ("slurm", "packages", "config", "state_dir", "channel")]
    assert {(f.verdict, f.found) for f in rest} == {(Verdict.UNKNOWN, f"cannot tell: {AWAY}")}


def test_pyslurm_that_reads_is_used() -> None:
    """Installed, and its trial gave no fault."""
    found = findings(slurm(), host(pyslurm="", pyslurm_version="25.11.2"))["pyslurm"]

    assert found.verdict is Verdict.OK and "pyslurm 25.11.2 reads" in found.found


@given(
    gone=st.sets(st.sampled_from(sorted(GOOD))), odd=st.sets(st.sampled_from(sorted(GOOD))), text=st.text(max_size=8)
)
def test_no_answer_of_slurm_breaks_a_check(gone: set[str], odd: set[str], text: str) -> None:
    """Settings that are missing or hold anything: every check answers, and a missing one is never ok for its check."""
    settings = {**dict.fromkeys(odd, text), **dict.fromkeys(gone, None)}
    facts = {name: Unknown("x") for name in ("daemons", "state", "clock_ahead_s", "latest_start") if text.endswith("!")}

    found = findings(slurm(settings, **facts), host())

    assert tuple(found) == CHECKS
    for name, check in {
        "KillWait": "kill_wait",
        "JobRequeue": "job_requeue",
        "SelectType": "select",
        "PriorityType": "priority",
        "JobSubmitPlugins": "job_submit",
    }.items():
        assert name not in gone or found[check].verdict is Verdict.UNKNOWN


def test_documentation_has_each_check() -> None:
    """The page that each finding points at has the place, and a fix is a command or a line of a file."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "admin.md").read_text()

    for name in CHECKS:
        assert f'<a id="doctor-{name}"></a>' in page
    assert set(COMMANDS) == {"scontrol", "squeue", "sinfo", "scancel"}


# what only an administrator can change
_ADMINS = ("slurm.conf", "scontrol reconfigure", "sacctmgr", "systemctl", "as root", "chronyc", "NodeName=", "=yes in")


@pytest.mark.parametrize(
    ("check", "verdict", "settings", "facts", "of_host", "config", "words"),
    BAD,
    ids=[f"{row[0]}-{row[1]}-{row[6][:20]}" for row in BAD],
)
def test_a_plain_user_gets_what_a_plain_user_can_do(
    check: str,
    verdict: str,  # noqa: ARG001 of all cases
    settings: dict[str, Any],
    facts: dict[str, Any],
    of_host: dict[str, Any],
    config: tuple[str, ...],
    words: str,  # noqa: ARG001 as above
) -> None:
    """Each fix is a command of theirs, or none; what is an administrator's is to be asked for."""
    plain = {**facts, "admin_level": ("None", ())}
    found = findings(slurm(settings, **plain), host(load(None, config), **of_host))[check]
    as_admin = findings(slurm(settings, **facts), host(load(None, config), **of_host))[check]

    mine = found.fix.partition("; for everybody's jobs")[0]
    assert not [word for word in _ADMINS if word in mine], found
    assert not mine or mine.split()[0] in _OWN, found
    if check not in ("rights", "reads"):
        assert (found.ask or found.fix) == as_admin.fix


# the first words of what anybody may type, or write into a configuration of their own
_OWN = {"hadar", "hadar-srun", "sbatch", "scontrol", "squeue;", "sdiag", "put", "[gpus.memory_gb]", "pip", "export",
        sys.executable}  # fmt: skip


def test_the_line_for_gpus_without_a_type_has_the_number_of_the_node() -> None:
    """It is to be copied."""
    found = findings(slurm(state=state(nodes=(SlurmNode("x", (("gpu", 2),)),))), host())["gpu_types"]

    assert found.fix.startswith("NodeName=x Gres=gpu:TYPE:2 ")
