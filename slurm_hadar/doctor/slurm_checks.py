"""Checks of Slurm itself: its daemons, the rights of this user, and slurm.conf."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.steering.writes import RESTART_GAP_S
from slurm_hadar.doctor.finding import Answer, Check, cannot_tell, note, ok, problem, warning
from slurm_hadar.slurm.backend.cli import HIDDEN
from slurm_hadar.slurm.survey import COMMANDS, Survey, Unknown
from slurm_hadar.units import counted

__all__ = ["CHECKS", "SlurmCase", "added"]

_OLDEST, _NEWEST = (22, 5), (26, 5)
_TRIED = ((22, 5), (24, 11), (26, 5))  # docs/versions.md
_DEFAULT_BF_S, _DEFAULT_REQUEUE_S = 30.0, 120.0
_RATE_BUCKET, _RATE_REFILL = 30.0, 2.0
_ROUND_CALLS = 10  # a round's reads, its writes in batches, and its looks at what they did


@dataclass(frozen=True)
class SlurmCase:
    """What these checks judge: a Slurm, by a configuration."""

    slurm: Survey
    config: Config


def added(slurm: Survey, name: str, *words: str) -> str:
    """The line of slurm.conf that has what ``name`` has now, and these words (or ``key=value``): who copies it must not
    lose the rest."""
    keys = {word.partition("=")[0].lower() for word in words}
    now = [part.strip() for part in slurm.settings.get(name, "").split(",")]
    kept = [part for part in now if part and part != "none" and part.partition("=")[0].lower() not in keys]
    return f"{name}={','.join([*kept, *words])}"


def _release(version: tuple[int, ...]) -> str:
    return ".".join(f"{n:02d}" if i == 1 else str(n) for i, n in enumerate(version))


def _version(case: SlurmCase) -> Answer:
    version = case.slurm.version
    if isinstance(version, Unknown):
        return cannot_tell(version.why)
    said = f"{case.slurm.identity.split()[0]} runs Slurm {_release(version)}"
    if version[:2] < _OLDEST:
        return problem(f"{said}, older than {_release(_OLDEST)}", "upgrade Slurm")
    tried = ", ".join(map(_release, _TRIED))
    if version[:2] in _TRIED:
        return ok(f"{said}, one of those that steering is tested on ({tried})")
    if version[:2] <= _NEWEST:
        return note(
            f"{said}; its output is understood, but steering is tested on {tried} only",
            "hadar run --once --mode advise    # and begin acting with one small partition",
        )
    return warning(
        f"{said}, newer than any that was looked at ({_release(_NEWEST)})",
        "hadar run --once --mode observe    # and read its log before any mode that acts",
    )


def _daemons(case: SlurmCase) -> Answer:
    daemons = case.slurm.daemons
    if isinstance(daemons, Unknown):
        return cannot_tell(daemons.why)
    down = [d.host for d in daemons if not d.up]
    if down:
        return warning(f"slurmctld is down on {', '.join(down)}", f"systemctl start slurmctld    # on {down[0]}")
    return ok("slurmctld is up on " + ", ".join(f"{d.host} ({d.role})" for d in daemons))


def _commands(case: SlurmCase) -> Answer:
    missing = case.slurm.missing
    needed = [name for name in missing if name in COMMANDS]
    fix = "put the directory of Slurm's commands on PATH, or install Slurm's client package"
    if needed:
        return problem(f"not on PATH: {', '.join(needed)}", fix)
    if missing:
        return note(f"not on PATH: {', '.join(missing)}; the controller works without", fix)
    return ok("all commands are on PATH")


def _complaints(case: SlurmCase) -> Answer:
    lines = case.slurm.noise
    if not lines:
        return ok("scontrol complains of nothing when it works")
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    return note(
        f"scontrol complains although it works: {lines[0]!r}{more}",
        "scontrol show config > /dev/null    # shows them; slurm.conf mostly has the cause",
    )


def _reads(case: SlurmCase) -> Answer:
    state, slow = case.slurm.state, case.config.slurm.slow_read_s
    if isinstance(state, Unknown):
        fix = "squeue; sinfo    # do they answer by hand?"
        if HIDDEN in state.why:
            fix = "scontrol show config | grep PrivateData    # without nodes and partitions there, or as an Operator"
        return problem(f"the queue cannot be read: {state.why}", fix)
    what = f"{counted(len(state.jobs), 'job')} and {counted(len(state.nodes), 'node')}"
    said = f"{what} read in {1000 * state.read_s:.0f} ms"
    if state.read_s > slow:
        return warning(f"{said}, longer than slurm.slow_read_s = {slow:g} s", "sdiag    # what keeps slurmctld busy?")
    private = case.slurm.options("PrivateData")
    hidden = not isinstance(private, Unknown) and "jobs" in private and not case.slurm.may_all
    others = set(case.config.controller.users) != {case.slurm.user}
    if hidden and others and isinstance(case.slurm.admin_level, Unknown):
        return cannot_tell(
            f"{said}; whether PrivateData hides others' jobs from {case.slurm.user}: {case.slurm.admin_level.why}"
        )
    if hidden and others:
        return warning(
            f"{said}, but PrivateData hides others' jobs from {case.slurm.user}",
            _operator(case.slurm),
        )._replace(meanwhile=_own_jobs(case.slurm))
    return ok(said)


def _own_jobs(slurm: Survey) -> str:
    return f"hadar run --set 'controller.users=[\"{slurm.user}\"]'    # only your own jobs, which needs no rights"


def _operator(slurm: Survey) -> str:
    """What makes this user one: sacctmgr modifies nothing of a user whom the database does not know."""
    if slurm.admin_level == ("", ()):
        return f"sacctmgr add user {slurm.user} account=root adminlevel=Operator"
    return f"sacctmgr modify user {slurm.user} set AdminLevel=Operator"


def _rights(case: SlurmCase) -> Answer:
    slurm, users = case.slurm, case.config.controller.users
    if slurm.is_slurm_user:
        who = "root" if slurm.uid == 0 else "SlurmUser"
        return ok(f"{slurm.user} may change every job ({who}); Operator would be enough")
    own = _own_jobs(slurm)
    if set(users) == {slurm.user}:
        return ok(f"{slurm.user} steers their own jobs only, which every user may")
    if isinstance(slurm.admin_level, Unknown):
        return cannot_tell(slurm.admin_level.why, own)
    level, accounts = slurm.admin_level
    if level in ("Operator", "Administrator"):
        extra = "" if level == "Operator" else "; Operator would be enough"
        return ok(f"{slurm.user} has AdminLevel={level}{extra}")
    found = f"{slurm.user} may change their own jobs only"
    if accounts:
        found = f"{slurm.user} may change their own jobs and those of the accounts {', '.join(accounts)} only"
    fix = _operator(slurm)
    if slurm.settings.get("AccountingStorageType") != "accounting_storage/slurmdbd":
        user = slurm.settings.get("SlurmUser", "SlurmUser").partition("(")[0]
        fix = f"runuser -u {user} -- hadar run    # without slurmdbd only root and SlurmUser may change others' jobs"
    judge = problem if case.config.boldest is Mode.ACT and not accounts else warning
    return judge(found, f"{own}; for everybody's jobs an administrator can say: {fix}")


def _rate_limit(case: SlurmCase) -> Answer:
    options = case.slurm.options("SlurmctldParameters")
    if isinstance(options, Unknown):
        return cannot_tell(options.why)
    if "rl_enable" not in options:
        return ok("slurmctld limits nobody's calls")
    if case.slurm.is_slurm_user:
        return ok(f"slurmctld limits calls (rl_enable), but not those of {case.slurm.user}")
    bucket = _number(options.get("rl_bucket_size", ""), _RATE_BUCKET)
    refill = _number(options.get("rl_refill_rate", ""), _RATE_REFILL)
    found = f"{case.slurm.user} has {bucket:g} calls at once and {refill:g} more per second"
    if bucket < _ROUND_CALLS:
        return warning(
            f"{found}; a round that moves jobs needs about {_ROUND_CALLS}",
            added(case.slurm, "SlurmctldParameters", f"rl_bucket_size={_RATE_BUCKET:g}"),
        )
    return note(f"{found}; a round that moves jobs needs about {_ROUND_CALLS}")


def _number(text: str, default: float) -> float:
    try:
        return float(text)
    except ValueError:
        return default


def _kill_wait(case: SlurmCase) -> Answer:
    wait = case.slurm.number("KillWait")
    if isinstance(wait, Unknown):
        return cannot_tell(wait.why)
    longest = case.config.jobs.end_timeout_s
    found = f"a job that ignores SIGTERM keeps its GPUs for KillWait = {wait:g} s when it is moved"
    if wait + 2 >= longest:
        return warning(
            f"{found}, and is given up after jobs.end_timeout_s = {longest:g} s",
            f"hadar run --set jobs.end_timeout_s={wait + 30:g}    # or in the config file",
        )
    return ok(f"{found}, within jobs.end_timeout_s = {longest:g} s")


def _requeue_delay(case: SlurmCase) -> Answer:
    scheduler, auth = case.slurm.options("SchedulerParameters"), case.slurm.options("AuthInfo")
    if isinstance(scheduler, Unknown):
        return cannot_tell(scheduler.why)
    delay = _DEFAULT_REQUEUE_S
    if not isinstance(auth, Unknown):
        delay = _number(auth.get("cred_expire", ""), delay)
    delay = _number(scheduler.get("requeue_delay", ""), delay)
    found = f"a requeued job waits {delay:g} s by itself; the controller clears that for jobs that it moves"
    if delay > _DEFAULT_REQUEUE_S:
        name, key = (
            ("SchedulerParameters", "requeue_delay") if "requeue_delay" in scheduler else ("AuthInfo", "cred_expire")
        )
        fix = added(case.slurm, name, f"{key}={_DEFAULT_REQUEUE_S:g}")
        return note(f"{found}, and a job that fails between rounds waits it out", fix)
    return ok(found)


def _job_requeue(case: SlurmCase) -> Answer:
    value = case.slurm.setting("JobRequeue")
    if isinstance(value, Unknown):
        return cannot_tell(value.why)
    if value != "1":
        return warning("JobRequeue = 0: jobs can be moved only if submitted with --requeue", "JobRequeue=1")
    return ok("jobs can be requeued unless they say otherwise (JobRequeue = 1)")


def _append(case: SlurmCase) -> Answer:
    value = case.slurm.setting("JobFileAppend")
    if isinstance(value, Unknown):
        return cannot_tell(value.why)
    if value != "1":
        return note(
            "JobFileAppend = 0: a job that starts again empties its output file, unless it was submitted with "
            "--open-mode=append",
            "JobFileAppend=1",
        )
    return ok("a job that starts again goes on in its output file (JobFileAppend = 1)")


def _accounting(case: SlurmCase) -> Answer:
    kind, answers = case.slurm.setting("AccountingStorageType"), case.slurm.accounting
    if isinstance(kind, Unknown):
        return cannot_tell(kind.why)
    if isinstance(answers, Unknown):
        return warning(f"{kind}, but sacct does not answer: {answers.why}", "systemctl status slurmdbd")
    if not answers:
        return note(
            "Slurm keeps no accounts; predictions learn from the jobs that the controller sees end, and hadar "
            "replay needs accounts",
            "AccountingStorageType=accounting_storage/slurmdbd",
        )
    return ok(f"sacct answers ({kind})")


def _job_comments(case: SlurmCase) -> Answer:
    if case.slurm.accounting is False:
        return cannot_tell("Slurm keeps no accounts")
    flags = case.slurm.options("AccountingStoreFlags")
    if isinstance(flags, Unknown):
        return cannot_tell(flags.why)
    if "job_comment" in flags:
        return ok("accounts keep jobs' comments (job_comment)")
    return note(
        "accounts do not keep jobs' comments, so a replay of them knows no models",
        added(case.slurm, "AccountingStoreFlags", "job_comment"),
    )


def _accounted_gpus(case: SlurmCase) -> Answer:
    if case.slurm.accounting is False:
        return cannot_tell("Slurm keeps no accounts")
    tres = case.slurm.setting("AccountingStorageTRES")
    if isinstance(tres, Unknown):
        return cannot_tell(tres.why)
    kept = [name for name in tres.split(",") if name.startswith("gres/gpu")]
    state = case.slurm.state
    types = sorted({t for n in state.nodes for t, _ in n.gpus}) if not isinstance(state, Unknown) else []
    fix = added(case.slurm, "AccountingStorageTRES", "gres/gpu", *(f"gres/gpu:{t}" for t in types if t != "gpu"))
    if not kept:
        return warning("accounts do not keep GPUs, so hadar replay and predictions see none", fix)
    if not any(":" in name for name in kept):
        return note("accounts keep the number of GPUs, not their types", fix)
    return ok(f"accounts keep {', '.join(kept)}")


def _priority(case: SlurmCase) -> Answer:
    kind = case.slurm.setting("PriorityType")
    if isinstance(kind, Unknown):
        return cannot_tell(kind.why)
    if kind != "priority/multifactor":
        return note(
            f"{kind}: between two rounds Slurm starts jobs in order of submission, and a requeue counts as one",
            "PriorityType=priority/multifactor",
        )
    return ok(f"{kind} orders what starts between two rounds")


def _scheduler(case: SlurmCase) -> Answer:
    kind, options = case.slurm.setting("SchedulerType"), case.slurm.options("SchedulerParameters")
    if isinstance(kind, Unknown):
        return cannot_tell(kind.why)
    if kind != "sched/backfill":
        return warning(
            f"{kind}: a job that waits for its GPUs keeps all behind it from starting", "SchedulerType=sched/backfill"
        )
    if isinstance(options, Unknown):
        return cannot_tell(options.why)
    every, patience = _number(options.get("bf_interval", ""), _DEFAULT_BF_S), case.config.jobs.start_timeout_s
    if every > patience:
        return note(
            f"{kind}, every {every:g} s: a placed job may start later than jobs.start_timeout_s = "
            f"{patience:g} s, and is then looked at again in the next round",
            added(case.slurm, "SchedulerParameters", f"bf_interval={max(1, int(patience) - 5)}"),
        )
    return ok(f"{kind}, every {every:g} s")


def _preemption(case: SlurmCase) -> Answer:
    mode, kind = case.slurm.setting("PreemptMode"), case.slurm.setting("PreemptType")
    if isinstance(mode, Unknown) or isinstance(kind, Unknown):
        return cannot_tell("scontrol show config names no PreemptMode or PreemptType")
    fix = "PreemptMode=OFF    # of the partitions that are steered"
    if "GANG" in mode and kind == "preempt/none":
        return warning(
            f"PreemptMode = {mode}: where a partition has OverSubscribe=FORCE or YES, Slurm suspends jobs by turns, "
            "and a suspended job keeps its GPUs",
            "PreemptMode=OFF",
        )
    if mode in ("OFF", "") or kind == "preempt/none":
        return ok("Slurm stops no jobs in favour of others")
    if "SUSPEND" in mode or "GANG" in mode:
        return warning(f"PreemptMode = {mode}: a suspended job keeps its GPUs, so they are freed for nobody", fix)
    if "CANCEL" in mode:
        return warning(f"PreemptMode = {mode}: Slurm ends steered jobs for good in favour of others", fix)
    return note(f"PreemptMode = {mode}: Slurm too stops jobs, without asking them to save", fix)


def _select(case: SlurmCase) -> Answer:
    kind = case.slurm.setting("SelectType")
    if isinstance(kind, Unknown):
        return cannot_tell(kind.why)
    if kind not in ("select/cons_tres", "select/cray_aries"):
        return problem(f"{kind} does not hand out single GPUs", "SelectType=select/cons_tres")
    if kind != "select/cons_tres":
        return cannot_tell(f"{kind} rests on another plug-in, which Slurm does not name here")
    settings = case.slurm.settings
    found = f"{kind} ({settings.get('SelectTypeParameters') or 'no parameters'})"
    defaults = settings.get("DefMemPerNode"), "DefMemPerGPU=" in settings.get("JobDefaults", "")
    if "MEMORY" in found.upper() and defaults == ("UNLIMITED", False):
        return note(
            f"{found}, and no default for memory: where its partition has none either, a job without --mem takes all "
            "of its node's, and nobody gets the other GPUs",
            "DefMemPerCPU=4000    # MiB",
        )
    return ok(found)


def _tasks(case: SlurmCase) -> Answer:
    plugin = case.slurm.setting("TaskPlugin")
    if isinstance(plugin, Unknown):
        return cannot_tell(plugin.why)
    fix = "TaskPlugin=task/affinity,task/cgroup    # and ConstrainDevices=yes in cgroup.conf"
    if "cgroup" not in plugin:
        said = f"TaskPlugin = {plugin or '(null)'}"
        return note(f"{said}: nothing keeps a job from GPUs that are not its own, nor its CPUs", fix)
    constrained = case.slurm.setting("ConstrainDevices")
    if isinstance(constrained, Unknown):
        return cannot_tell(f"{plugin}, but scontrol does not show ConstrainDevices of cgroup.conf")
    if constrained.lower() != "yes":
        return note(f"ConstrainDevices = {constrained}: nothing keeps a job from GPUs that are not its own", fix)
    return ok(f"{plugin} keeps each job to its own GPUs")


def _clock(case: SlurmCase) -> Answer:
    ahead = case.slurm.clock_ahead_s
    if isinstance(ahead, Unknown):
        return cannot_tell(ahead.why)
    least, most = ahead
    fix = "chronyc makestep    # on the host whose clock is wrong; then keep chronyd running"
    if least <= 0 <= most:
        return ok(f"slurmctld and this host agree, as far as whole seconds tell (within {max(-least, most):.1f} s)")
    off = least if least > 0 else -most
    side = "ahead of" if least > 0 else "behind"
    found = f"slurmctld's clock is at least {off:.1f} s {side} this host's"
    if off < RESTART_GAP_S / 2:
        return note(found, fix)
    return (problem if off >= case.config.controller.round_s else warning)(found, fix)


def _node_clocks(case: SlurmCase) -> Answer:
    latest, ahead = case.slurm.latest_start, case.slurm.clock_ahead_s
    if isinstance(latest, Unknown):
        return cannot_tell(latest.why)
    state = case.slurm.state
    if isinstance(state, Unknown) or isinstance(ahead, Unknown):
        return cannot_tell("slurmctld's own time is not known")
    moment, node = latest
    if moment > state.time + ahead[1] + 1:
        return warning(
            f"{node} says it was started {moment - state.time - ahead[1]:.0f} s in the future",
            f"chronyc makestep    # on {node}",
        )
    return cannot_tell("Slurm shows no node's clock; none was started in the future", "clush -a date +%s")


def _power_saving(case: SlurmCase) -> Answer:
    program, private = case.slurm.setting("SuspendProgram"), case.slurm.setting("PrivateData")
    idle, patience = case.slurm.setting("SuspendTime"), case.slurm.setting("ResumeTimeout")
    for value in (program, private, idle, patience):
        if isinstance(value, Unknown):
            return cannot_tell(value.why)
    if str(program) in ("", "(null)"):
        return ok("Slurm switches no nodes off")
    if str(idle).upper() == "INFINITE":
        return ok(
            "Slurm switches no nodes off (SuspendTime = INFINITE), unless a partition has a SuspendTime of its own"
        )
    said = f"Slurm switches nodes off (SuspendTime = {idle}) and gives them {patience} to come up (ResumeTimeout)"
    words = str(private).lower()
    if "cloud" not in words:
        return note(
            f"{said}; cloud nodes that are off, if there are any, are not seen, and no job is placed there",
            added(case.slurm, "PrivateData", "cloud"),
        )
    return ok(said)


CHECKS = (
    Check("version", "What a release answers and allows differs from one to the next.", _version, ""),
    Check("daemons", "Without slurmctld nothing is read or written; jobs go on by themselves.", _daemons, ""),
    Check("commands", "The controller speaks to Slurm through its commands.", _commands),
    Check("complaints", "What is printed at each call hides what Slurm complains of in earnest.", _complaints, ""),
    Check("reads", "A round goes by one read of the queue and the nodes, and never by half an answer.", _reads),
    Check("rights", "A job can be changed by its owner, an operator, root and SlurmUser; others are refused.", _rights),
    Check("rate_limit", "A controller that is refused calls cannot verify what it wrote.", _rate_limit,
          "hadar run --set controller.round_s=600    # fewer calls"),
    Check("kill_wait", "GPUs are handed over only when their last job has gone.", _kill_wait),
    Check("requeue_delay", "Slurm makes a requeued job wait before it may start.", _requeue_delay, ""),
    Check("job_requeue", "Moving a job means requeueing it; one that may not be requeued is left alone.", _job_requeue,
          "sbatch --requeue    # or hadar submit, which adds it"),
    Check("append", "A moved job starts again, and its output of before should stay.", _append,
          "sbatch --open-mode=append    # or hadar submit, which adds it"),
    Check("accounting", "Past jobs show what a policy would have gained and how long jobs are.", _accounting,
          "hadar report --journal    # by what the controller itself has seen"),
    Check("job_comments", "The comment says which model a job trains; a replay needs it.", _job_comments, ""),
    Check("accounted_gpus", "A replay and the predictor need to know what GPUs a job had.", _accounted_gpus, ""),
    Check("priority", "Between two rounds Slurm itself decides which free GPU goes to whom.", _priority, ""),
    Check("scheduler", "A placed job is started by Slurm's scheduler, past jobs that wait.", _scheduler, ""),
    Check("preemption", "Two that stop jobs may work against each other.", _preemption, ""),
    Check("select", "A job is placed by the number of GPUs on each of its nodes.", _select, ""),
    Check("power_saving", "Jobs are placed on nodes that Slurm shows, also on those that are off.", _power_saving, ""),
    Check("tasks", "A job that uses another's GPU slows both, and what is measured is wrong.", _tasks, ""),
    Check("clock", "Start times are said by this host's clock and kept by slurmctld's.", _clock, ""),
    Check("node_clocks", "A job restarted in the second of its kill fails, by the node's clock.", _node_clocks, ""),
)  # fmt: skip
