"""``hadar-srun [srun options] -- command``: srun that survives being moved, and measures.

Runs in the batch script. It drops the variables in which sbatch has frozen the shape that was asked for at submission,
tells srun the tasks that the job has now, as many as plain srun would start, and puts the agent beside the command in
each task. Then it runs srun, whose output and exit code it has; who tells it to end lets the step save first
(:mod:`slurm_hadar.runtime.launch.running`). What it cannot do (no controller, slurmctld slow) costs measuring, never
the run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from slurm_hadar import comment, messages
from slurm_hadar.errors import CommentError, ConfigError
from slurm_hadar.joblog import say
from slurm_hadar.runtime.launch import copies, directory, nested, reports, retry, running, surroundings
from slurm_hadar.runtime.launch.slurmctld import JobFacts, ask, ask_patiently, job_facts
from slurm_hadar.runtime.launch.srun_options import split_command, without
from slurm_hadar.runtime.launch.turns import has_shards
from slurm_hadar.runtime.tasks import master, shape

# the command is then a terminal's, or not a command at all
NO_AGENT = ("--pty", "--multi-prog")
ROOT = Path(__file__).resolve().parents[2]  # where the package lies
ENDED = 128 + signal.SIGTERM  # what a script sees of a program that Slurm has ended


class NotStarted(Exception):
    """The command must not run; ``code`` is what the script shall see."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


def main(argv: list[str] | None = None) -> int:
    """Run srun, or become it where no step is to be saved; returns the exit code for the script."""
    _open_standard_files()
    arguments = list(sys.argv[1:] if argv is None else argv)
    options, command = split_command(arguments)
    srun = shutil.which("srun")
    if srun is None:
        say("srun is not on PATH: hadar-srun runs commands in Slurm jobs; without Slurm start the command itself")
        return 127
    _disinherit(os.environ)
    environ = dict(os.environ)
    if messages.canonical_job_id(environ) is None or not command:
        return running.become(srun, arguments, environ)
    try:
        words = prepare(options, command, environ)
    except NotStarted as refusal:
        say(str(refusal))
        return refusal.code
    except OSError as error:
        say(f"not started: {error.filename or 'the working directory'}: {error.strerror}")
        return 1
    _announce_restart(environ)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if "--pty" in options or _in_background():  # the terminal is srun's, or must not be
        return running.become(srun, words, environ)
    return running.run(srun, words, environ, environ["HADAR_JOB_ID"])


def _in_background() -> bool:
    """Whether a shell has put this behind others at its terminal: srun in a session of its own could still read what
    is typed there."""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # it has none
        return False


def prepare(options: list[str], command: list[str], environ: MutableMapping[str, str]) -> list[str]:
    """What srun is to be called with in this job; ``environ`` becomes that of the step. Raises NotStarted."""
    if (fault := nested.twice(options, command)) is not None:
        raise NotStarted(fault, 2)
    if (advice := nested.around(options, environ)) is not None:
        say(advice)
    if "--overlap" in options:
        environ["HADAR_STEP_SHARED"] = "1"
    describe_job(environ)
    environ.setdefault("PYTHONHASHSEED", "0")  # sets of texts have one order, in all workers and after every restart
    # a task of an array may be a copy of a forked job, and copies must know of each other
    facts = job_facts(environ["HADAR_JOB_ID"], ask_patiently if environ.get("SLURM_ARRAY_JOB_ID") else ask)
    if facts is not None:
        _take_place(environ, facts)
    if (refusal := copies.prepare(environ, facts)) is not None:
        raise NotStarted(refusal, 1)
    shaped = [*options, *shape.settle(options, environ, None if facts is None else facts.tasks)]
    if (advice := shape.of_workers(shaped, command)) is not None:
        say(advice)
    options = place_by_graph(shaped, environ, facts)
    if any(option.partition("=")[0] in NO_AGENT for option in options):
        if shares_gpu(environ, facts):
            say(f"with {' or '.join(NO_AGENT)} a command takes no turns: it runs as if the GPU were its own")
    else:
        command = beside_agent(command, environ, facts, surroundings.in_container(options, environ))
    changed = {name for name, value in environ.items() if os.environ.get(name) != value}
    messages.note_set(environ, (name for name in changed if name.startswith("HADAR_")))
    ours = changed.union(name for name in environ if name.startswith("HADAR_"))
    return [*options, *surroundings.exported(options, environ, ours), "--", *command]


def shares_gpu(environ: Mapping[str, str], facts: JobFacts | None) -> bool:
    """Whether the job has a part of a GPU; outside of its nodes, as in salloc, Slurm alone says so."""
    return has_shards(environ) or (facts is not None and facts.shards)


def beside_agent(
    command: list[str], environ: MutableMapping[str, str], facts: JobFacts | None, contained: bool = False
) -> list[str]:
    """The command with the agent, where there is something for it to do; ``environ`` tells it what. ``contained``: in a
    container, which need not have it."""
    shares = shares_gpu(environ, facts)
    heard, retried = reports.prepare(environ, facts), use_retry(environ, facts)
    if shares:
        declare_needs(environ, facts)
    if not (heard or retried or shares):
        return command
    environ.update({} if heard else {"HADAR_UNHEARD": "1"})
    agent = agent_command()
    return [*(surroundings.agent_if_there(agent, str(ROOT)) if contained else agent), *command]


def _take_place(environ: MutableMapping[str, str], facts: JobFacts) -> None:
    """Of an earlier job with the same id, and of this job's run before; that of a later run is not taken: a script
    whose node Slurm has lost goes on there, and would start its program beside that of the job's next run."""
    run = messages.restart_count(environ)
    if facts.restarts > run:
        over = f"run {run + 1} of job {environ['HADAR_JOB_ID']} is over, Slurm is at run {facts.restarts + 1}"
        raise NotStarted(f"{over}: not started", ENDED)
    if messages.given_dir(os.environ) is not None:
        if "fork=" not in facts.comment:  # copies of one training meet there
            environ["HADAR_JOB_DIR"] = str(directory.apart(environ))
            directory.note_owner(environ, facts.submitted)
        return
    if run == 0:
        directory.set_aside_foreign(environ, facts.submitted)
    else:
        directory.set_aside_left_over(environ, facts)


def _disinherit(environ: MutableMapping[str, str]) -> None:
    """Of a job that the program of another has submitted: what was that one's, such as its directory and its step."""
    if ours := messages.inherited(environ):
        for name in (*ours, "SLURM_STEP_ID"):
            environ.pop(name, None)


def place_by_graph(options: list[str], environ: MutableMapping[str, str], facts: JobFacts | None) -> list[str]:
    """Where the ranks of a job with a graph belong on its nodes: in the environment, and in the srun options that are
    returned."""
    if environ.get("SLURM_JOB_NUM_NODES", "1") == "1" or facts is None:  # a node's GPUs are all alike
        return options
    if "graph=" not in facts.comment or not comment.is_ours(facts.comment):
        return options
    try:
        value = comment.parse(facts.comment).graph
    except CommentError as error:
        say(f"{error}; ranks are placed by srun")
        return options
    if value is None:
        return options
    try:
        from slurm_hadar.runtime.tasks.rankmap import lay_out  # with NumPy: only for those who need it
    except ImportError as error:
        say(f"ranks are placed by srun, not by the job's graph: {error} in {sys.executable}")
        return options
    layout = lay_out(options, environ, value, facts.work_dir, Path(environ["HADAR_JOB_DIR"]), ask)
    if layout.trouble:
        say(f"ranks are placed by srun, not by the job's graph: {layout.trouble}")
        return options
    environ.update(layout.variables)
    if layout.first and "HADAR_MASTER_ADDR" not in os.environ:
        environ["HADAR_MASTER_ADDR"] = master.address_of(layout.first)
    return [*without(options, layout.drop), *layout.options]


def describe_job(environ: MutableMapping[str, str]) -> None:
    """Tell the tasks the job's id and directory, and where the workers of a training meet."""
    environ["HADAR_JOB_ID"] = messages.canonical_job_id(environ) or ""
    environ["HADAR_JOB_DIR"] = str(directory.find(environ))
    address = master.first_node_address(environ)
    environ.setdefault("HADAR_MASTER_ADDR", address)
    environ.setdefault("HADAR_MASTER_PORT", str(master.free_port(environ)))
    if address.startswith("127."):  # nodes that share this machine: gloo must not look their names up
        environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def use_retry(environ: MutableMapping[str, str], facts: JobFacts | None) -> bool:
    """Whether the comment asks for retries of a command that fails; the agent is told how many."""
    parsed, _ = comment.read(facts.comment if facts is not None else "")
    if parsed.retry is None:
        return False
    environ["HADAR_RETRY"] = str(parsed.retry)
    return True


def declare_needs(environ: MutableMapping[str, str], facts: JobFacts | None) -> None:
    """Of a job with shards that says nothing of its memory, where memory is counted: what its like took, as its comment
    says, and never more than there is, lest its broker refuse it."""
    told = environ.keys() & {"HADAR_SHARE_PERSISTENT", "HADAR_SHARE_EPHEMERAL"}
    if facts is None or told or not environ.get("HADAR_SHARE_MEMORY"):
        return
    needs = comment.read(facts.comment)[0].needs_mib
    if needs is None:
        return
    from slurm_hadar.sharing.declared import memory_of

    with contextlib.suppress(ConfigError):  # who starts the broker says what is wrong with it
        memory = memory_of(environ)
        persistent = min(memory, needs[0] << 20)
        ephemeral = min(memory - persistent, needs[1] << 20)
        environ.update(HADAR_SHARE_PERSISTENT=str(persistent), HADAR_SHARE_EPHEMERAL=str(ephemeral))
        environ["HADAR_SHARE_LEARNED"] = "1"  # it is not held to what it has not said itself
        say(f"memory on the shared GPU as its like took: {persistent >> 20} MiB, and {ephemeral >> 20} MiB by turns")


def agent_command() -> list[str]:
    """The agent, in this very Python and undisturbed by the PYTHONPATH that the user's script needs, and by what is in
    the working directory."""
    start = f"import sys; sys.path.append({str(ROOT)!r}); from slurm_hadar.runtime.agent import main; sys.exit(main())"
    return [sys.executable, "-E", "-P", "-c", start, "--"]


def _announce_restart(environ: MutableMapping[str, str]) -> None:
    restart = messages.restart_count(environ)
    if not restart:
        return
    from slurm_hadar.runtime.checkpoint.listing import newest_step

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


def _open_standard_files() -> None:
    """Where one is closed, srun takes the next file that it opens for it, and does not end for a minute."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
    os.close(file)


if __name__ == "__main__":
    sys.exit(main())
