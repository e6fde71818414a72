"""``hadar-srun [srun options] -- command``: srun that survives being moved, and measures.

Runs in the batch script. It drops the variables in which sbatch has frozen the shape that was asked for at submission,
so that srun uses what the job has now, starts one task per node unless told otherwise, and puts the agent beside the
command in each task. Then it *becomes* srun, so that signals, output and exit code are srun's own. What it cannot do
(no controller, slurmctld slow) costs measuring, never the run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, MutableMapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from slurm_hadar import comment, messages
from slurm_hadar.errors import ChannelError, CheckpointError, CommentError
from slurm_hadar.runtime.checkpoint.files import reason_of
from slurm_hadar.runtime.joblog import say
from slurm_hadar.runtime.launch import nested, nodelist, own, retry
from slurm_hadar.runtime.launch.srun_options import split_command, without

CALL_S = 10.0
VOUCH_LATER = "HADAR_VOUCH_LATER"  # set where slurmctld did not take the token's fingerprint
VOUCH_AGAIN_S, VOUCH_AGAIN_MOST_S = 30.0, 600.0
OWNER_FILE = "owner"
SEP = "\x1f"
# frozen at submission, and wrong once the job was given another shape
STALE = (
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NPROCS",
    "SLURM_TRES_PER_TASK",
)
# the command is then a terminal's, or not a command at all
NO_AGENT = ("--pty", "--multi-prog")
SHAPE_LONG = ("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "het-group", "pack-group")
ENDED = 128 + signal.SIGTERM  # what a script sees of a program that Slurm has ended
PORT_LOW, PORT_COUNT = 12000, 18000


def main(argv: list[str] | None = None) -> int:
    """Become srun; returns only if srun cannot be run at all."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options, command = split_command(arguments)
    srun = shutil.which("srun")
    if srun is None:
        say("srun is not on PATH: hadar-srun runs commands in Slurm jobs; without Slurm start the command itself")
        return 127
    environ = dict(os.environ)
    if messages.canonical_job_id(environ) is None or not command:
        return _become(srun, arguments, environ)
    if (fault := nested.twice(options, command)) is not None:
        say(fault)
        return 2
    if (advice := nested.around(options, environ)) is not None:
        say(advice)
    if "--overlap" in options:
        environ["HADAR_STEP_SHARED"] = "1"
    clean(environ)
    describe_job(environ)
    run, shown = messages.restart_count(environ), submission(environ)
    if shown is not None and shown.restarts > run:
        say(
            f"run {run + 1} of job {environ['HADAR_JOB_ID']} is over, Slurm is at run {shown.restarts + 1}: not started"
        )
        return ENDED
    if shown is not None and run == 0 and "HADAR_JOB_DIR" not in os.environ:
        set_aside_foreign(environ, shown.submitted)
    described = describe_array_task(environ)
    refusal = prepare_fork(environ, described)
    if refusal is not None:
        say(refusal)
        return 1
    options += default_shape(options, environ)
    described, options = place_by_graph(options, environ, described)
    if not any(o.partition("=")[0] in NO_AGENT for o in options):
        heard, retried = prepare_reports(environ, described), use_retry(environ, shown.comment if shown else "")
        if heard or retried:
            environ.update({} if heard else {"HADAR_UNHEARD": "1"})
            command = [*agent_command(), *command]
    _announce_restart(environ)
    return _become(srun, [*options, "--", *command], environ)


def clean(environ: MutableMapping[str, str]) -> None:
    """Drop what is stale; ``SLURM_JOB_NUM_NODES``, node list and the GPUs on the node are Slurm's own and right."""
    for name in STALE:
        environ.pop(name, None)


def default_shape(options: list[str], environ: MutableMapping[str, str]) -> list[str]:
    """One task per node of the allocation, unless the options say anything about nodes or tasks."""
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES")
    if nodes is None or any(_shapes(word) for word in options):
        return []
    return ["-N", nodes, "-n", nodes]


def _shapes(word: str) -> bool:
    if word.startswith("--"):
        return word[2:].partition("=")[0] in SHAPE_LONG
    return word.startswith(("-n", "-N"))


def place_by_graph(
    options: list[str], environ: MutableMapping[str, str], described: str | None
) -> tuple[str | None, list[str]]:
    """Where the ranks of a job with a graph belong on its nodes: in the environment, and in srun's options.

    ``described``: what :func:`_describe` said, where it was asked already; returned with what it says now.
    """
    if environ.get("SLURM_JOB_NUM_NODES", "1") == "1":  # a node's GPUs are all alike
        return described, options
    if described is None:
        described = _describe(environ, _ask)
    work_dir, _, text = (described or "").partition(SEP)
    if "graph=" not in text or not comment.is_ours(text):
        return described, options
    try:
        value = comment.parse(text).graph
    except CommentError as error:
        say(f"{error}; ranks are placed by srun")
        return described, options
    if value is None:
        return described, options
    try:
        from slurm_hadar.runtime.launch.rankmap import lay_out  # with NumPy: only for those who need it
    except ImportError as error:
        say(f"ranks are placed by srun, not by the job's graph: {error} in {sys.executable}")
        return described, options
    layout = lay_out(options, environ, value, Path(work_dir), Path(environ["HADAR_JOB_DIR"]), _ask)
    if layout.trouble:
        say(f"ranks are placed by srun, not by the job's graph: {layout.trouble}")
        return described, options
    environ.update(layout.variables)
    if layout.first and "HADAR_MASTER_ADDR" not in os.environ:
        environ["HADAR_MASTER_ADDR"] = _address(layout.first)
    return described, [*without(options, layout.drop), *layout.options]


def describe_job(environ: MutableMapping[str, str]) -> None:
    """Tell the tasks the job's id and directory, and where the workers of a training meet."""
    environ["HADAR_JOB_ID"] = messages.canonical_job_id(environ) or ""
    environ["HADAR_JOB_DIR"] = str(_own_directory(environ))
    address = _first_node_address(environ)
    environ.setdefault("HADAR_MASTER_ADDR", address)
    environ.setdefault("HADAR_MASTER_PORT", str(_port(environ)))
    if address.startswith("127."):  # nodes that share this machine: gloo must not look their names up
        environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _own_directory(environ: MutableMapping[str, str]) -> Path:
    """As the user says, or where the job's files are safe from other users. If they are safe nowhere, that is said
    here, and a training that wants to save there refuses."""
    usual = messages.job_dir(environ, Path.cwd())
    assert usual is not None
    if environ.get("HADAR_JOB_DIR"):
        return usual
    try:
        found, why = own.place(usual.parent.parent, usual.name)
    except CheckpointError as error:
        say(str(error))
        return usual
    if why is not None:
        say(why)
    return found


class Submission(NamedTuple):
    """What Slurm says of the job now: how often it was restarted, and when submitted, which a requeue changes."""

    restarts: int
    submitted: str
    comment: str


def submission(environ: MutableMapping[str, str]) -> Submission | None:
    """Asked before each start: a script whose node Slurm has lost goes on there, and would start its program beside
    that of the job's next run. None where Slurm does not say."""
    first_of_copy = environ.get("SLURM_ARRAY_JOB_ID") and not messages.restart_count(environ)
    ask = _ask_patiently if first_of_copy else _ask  # copies must agree on the time
    command = ["squeue", "--noheader", f"--jobs={environ['HADAR_JOB_ID']}", "--states=all"]
    shown = ask([*command, f"--Format=RestartCnt:{SEP},SubmitTime:{SEP},Comment:{SEP}"])
    restarts, _, rest = (shown or "").partition(SEP)
    submitted, _, text = rest.partition(SEP)
    if not restarts.strip().isdecimal() or not submitted.strip():
        return None
    return Submission(int(restarts), submitted.strip(), text.strip().removesuffix(SEP))


def use_retry(environ: MutableMapping[str, str], text: str) -> bool:
    """Whether the comment asks for retries of a command that fails; the agent is told how many."""
    parsed, _ = comment.read(text)
    if parsed.retry is None:
        return False
    environ["HADAR_RETRY"] = str(parsed.retry)
    return True


def set_aside_foreign(environ: MutableMapping[str, str], submitted: str) -> None:
    """Keep a job from resuming another one's training.

    Job ids begin anew on a new cluster, and wrap on an old one. A job that starts for the first time has left nothing
    behind: what stands in its directory with another owner is an earlier job's, and is renamed.
    """
    job, directory = environ["HADAR_JOB_ID"], Path(environ["HADAR_JOB_DIR"])
    owner, mark = f"{environ.get('SLURM_CLUSTER_NAME', '')} {job} {submitted}\n", directory / OWNER_FILE
    try:
        if directory.exists() and not _is_owners(mark, owner, submitted):
            aside = directory.with_name(f"{directory.name}.before-{time.strftime('%Y%m%dT%H%M%S')}")
            directory.rename(aside)
            say(f"{directory} was an earlier job's with the same id; moved to {aside.name}")
        own.make(directory)
        mark.write_text(owner)
    except (OSError, CheckpointError) as error:
        say(f"cannot write {mark}: {reason_of(error)}; an earlier job's checkpoints may be taken for this one's")


def _is_owners(mark: Path, owner: str, submitted: str) -> bool:
    """Whether the directory with this mark is the job's. A mark that a full disk has left empty counts if it was made
    after the job was submitted: a slurmctld that is killed forgets that the job has run before."""
    if not mark.exists():
        return False
    if said := mark.read_text():
        return said == owner
    try:
        return mark.stat().st_mtime >= datetime.fromisoformat(submitted).timestamp()
    except ValueError:  # times as a user wants to see them
        return False


def _first_node_address(environ: MutableMapping[str, str]) -> str:
    """What Slurm itself uses to reach the job's first node: names of nodes need not be known to DNS."""
    try:
        names = nodelist.expand(environ.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        names = []
    return "127.0.0.1" if len(names) <= 1 else _address(names[0])


def _address(node: str) -> str:
    shown = _ask(["scontrol", "--oneliner", "show", "node", node])
    match = re.search(r"\bNodeAddr=(\S+)", shown or "")
    return match[1] if match else node


def _port(environ: MutableMapping[str, str]) -> int:
    """A port that other jobs on the node do not use: from the job id and the restart, and free on this node. From the
    cluster's name too, since small clusters on one machine begin their ids alike."""
    cluster = zlib.crc32(environ.get("SLURM_CLUSTER_NAME", "").encode())
    job, restart = int(environ.get("SLURM_JOB_ID", "0")), messages.restart_count(environ)
    for attempt in range(50):
        port = PORT_LOW + (cluster + job * 7 + restart * 3001 + attempt * 101) % PORT_COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return port


def describe_array_task(environ: MutableMapping[str, str]) -> str | None:
    """What :func:`_describe` says of a task of a job array, asked for patiently; None for any other job."""
    return _describe(environ, _ask_patiently) if environ.get("SLURM_ARRAY_JOB_ID") else None


def _describe(environ: MutableMapping[str, str], ask: Callable[[list[str]], str | None]) -> str | None:
    """The job's working directory and comment, apart by SEP."""
    job = environ["HADAR_JOB_ID"]
    return ask(["squeue", "--noheader", f"--jobs={job}", "--states=all", f"--format=%Z{SEP}%k"])


def prepare_fork(environ: MutableMapping[str, str], described: str | None) -> str | None:
    """Tell a task of a forked job's array where its copies meet; returns why it must not start, if it must not.

    Whether a controller is about does not matter: copies that did not know of each other would each train the whole
    job. So a comment that cannot be read, and an array whose comment speaks of fork= and is wrong, end the task.
    """
    if not environ.get("SLURM_ARRAY_JOB_ID"):
        return None
    if described is None:
        job = environ["HADAR_JOB_ID"]
        return f"squeue does not tell the comment of job {job}, so it may be a copy of a forked job; submit it again"
    _, _, text = described.partition(SEP)
    if not comment.is_ours(text):
        return None
    try:
        parsed = comment.parse(text)
    except CommentError as error:
        return f"{error}; a job that is to be forked is not started so" if "fork=" in text else None
    return _use_fork(parsed, environ) if parsed.fork is not None else None


def _use_fork(parsed: comment.JobComment, environ: MutableMapping[str, str]) -> str | None:
    """The directory's name holds the time of the first submission, since ids begin anew on a new cluster. Slurm forgets
    that time when it restarts a task, so it is taken from what the task's first run has noted."""
    directory = Path(environ["HADAR_JOB_DIR"])
    given = "HADAR_JOB_DIR" in os.environ  # then it is the user who keeps jobs apart
    try:
        submitted = "own" if given else (directory / OWNER_FILE).read_text().split()[-1]
    except (OSError, IndexError):
        return f"cannot read {directory / OWNER_FILE}, which tells the copies of this job from an earlier job's"
    parent = directory.with_name(environ["SLURM_ARRAY_JOB_ID"])
    environ["HADAR_FORK_DIR"] = str(parent / f"fork-{re.sub('[^0-9A-Za-z]', '', submitted)}")
    environ["HADAR_FORK_COPY"] = environ["SLURM_ARRAY_TASK_ID"]
    if parsed.period_steps is not None or parsed.period_s is not None:
        environ["HADAR_PERIOD"] = str(parsed.period_steps) if parsed.period_steps else f"{parsed.period_s:g}s"
    return None


def prepare_reports(environ: MutableMapping[str, str], described: str | None) -> bool:
    """Make everything ready for the agent; False if there is nobody to report to or the job is not ours.

    ``described``: what :func:`_describe` said, where it was asked already.
    """
    try:
        if messages.find_channel(environ) is None:
            return False
    except ChannelError as error:
        say(f"{error}; going on without reports")
        return False
    job = environ["HADAR_JOB_ID"]
    shown = described if described is not None else _describe(environ, _ask)
    work_dir, _, text = (None, "", None) if shown is None else shown.partition(SEP)
    if text is not None and not comment.is_ours(text):
        return False
    try:
        token = own.token(Path(environ["HADAR_JOB_DIR"]))
    except CheckpointError as error:
        say(f"no reports: {error}")
        return False
    if work_dir is not None:
        _place_spool(job, Path(work_dir), environ)
    if text is None or not _use_comment(job, text, messages.token_fingerprint(token), environ):
        environ[VOUCH_LATER] = "1"
    return True


def _place_spool(job: str, work_dir: Path, environ: MutableMapping[str, str]) -> None:
    """The spool goes below the job's working directory, the one place of the job's that Slurm tells the controller."""
    try:
        directory, _ = own.place(work_dir, job)
        own.make(directory)
    except CheckpointError as error:
        say(f"no spool file: {error}")
        return
    environ["HADAR_SPOOL"] = str(directory / messages.SPOOL_FILE)


def _use_comment(job: str, text: str, fingerprint: str, environ: MutableMapping[str, str]) -> bool:
    """Export what the comment says of the workload, and publish the token's fingerprint in it; False where slurmctld
    has not taken that."""
    try:
        parsed = comment.parse(text)
        wanted = with_key(text, fingerprint)
        comment.parse(wanted)
    except CommentError as error:
        say(str(error))
        return True
    if parsed.key not in (None, fingerprint):
        say(f"the comment named another token (key={parsed.key}): it is replaced by this job's, key={fingerprint}")
    for name, value in _exported(parsed):
        if value is not None:
            environ.setdefault(f"HADAR_{name}", str(value))
    if wanted == text or _ask_patiently(["scontrol", "update", f"JobId={job}", f"Comment={wanted}"]) is not None:
        return True
    say("the job's comment does not name its token yet; until it does, the controller does not believe its reports")
    return False


def vouch_later(environ: MutableMapping[str, str]) -> None:
    """Publish the token's fingerprint in the comment as soon as slurmctld takes it; for a thread beside the job."""
    job, pause_s = environ["HADAR_JOB_ID"], VOUCH_AGAIN_S
    fingerprint = messages.token_fingerprint(own.token(Path(environ["HADAR_JOB_DIR"])))
    while True:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, VOUCH_AGAIN_MOST_S)
        shown = _describe(environ, _ask)
        if shown is None:
            continue
        text = shown.partition(SEP)[2]
        if not comment.is_ours(text) or with_key(text, fingerprint) == text:
            return
        if _ask(["scontrol", "update", f"JobId={job}", f"Comment={with_key(text, fingerprint)}"]) is not None:
            say("the job's comment names its token now; the controller believes its reports")
            return


def _exported(parsed: comment.JobComment) -> list[tuple[str, object]]:
    return [("MODEL", parsed.model), ("BATCH", parsed.batch), ("STEPS", parsed.steps), ("MIX", parsed.mix)]


def with_key(text: str, fingerprint: str) -> str:
    """The comment with ``key=fingerprint`` in it; all else stays as the user wrote it."""
    pairs = [p for p in text[len(comment.PREFIX) :].strip().split(",") if p]
    if f"key={fingerprint}" in pairs:
        return text
    return comment.PREFIX + ",".join([*(p for p in pairs if not p.startswith("key=")), f"key={fingerprint}"])


def agent_command() -> list[str]:
    """The agent, in this very Python and undisturbed by the PYTHONPATH that the user's script needs."""
    root = str(Path(__file__).resolve().parents[2])
    start = f"import sys; sys.path.append({root!r}); from slurm_hadar.runtime.agent import main; sys.exit(main())"
    return [sys.executable, "-E", "-c", start, "--"]


def _announce_restart(environ: MutableMapping[str, str]) -> None:
    restart = messages.restart_count(environ)
    if not restart:
        return
    from slurm_hadar.runtime.checkpoint.store import newest_step

    step = newest_step(Path(environ["HADAR_JOB_DIR"]) / messages.CHECKPOINTS_DIR)
    where = environ.get("SLURM_JOB_NODELIST", "?")
    known = "" if step is None else f": resuming from step {step}"
    if code := retry.failure_before(environ):
        say(f"restart {restart} on {where}, since the run before failed with exit code {code}{known}")
        return
    say(
        f"restart {restart} on {where}{known}; what stands above of cancelled steps and of programs that were ended or "
        "killed is the end of the run before, and no fault"
    )


def _ask(command: list[str]) -> str | None:
    """The output of a Slurm command, or None (said once on stderr) if it failed or took too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"{command[0]} failed, going on without: {error}")
        return None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        say(f"{command[0]} failed, going on without: {reason}")
        return None
    return done.stdout.strip()


def _ask_patiently(command: list[str]) -> str | None:
    """As :func:`_ask`, again and again while slurmctld is busy or restarting."""
    for pause_s in (1.0, 3.0, 10.0):
        answer = _ask(command)
        if answer is not None:
            return answer
        time.sleep(pause_s)
    return _ask(command)


def _become(srun: str, arguments: list[str], environ: MutableMapping[str, str]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(srun, [srun, *arguments], dict(environ))
    except OSError as error:
        say(f"cannot run {srun}: {error.strerror}")
    return 126


if __name__ == "__main__":
    sys.exit(main())
