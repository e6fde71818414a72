"""hadar-srun: what it hands to srun, with a fake srun, squeue and scontrol on PATH that write down what they get."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar import messages
from slurm_hadar.runtime import reporter
from slurm_hadar.runtime.launch import reports
from slurm_hadar.runtime.launch.slurmctld import SEP
from slurm_hadar.runtime.tasks import shape
from tests.runtime.launch.batch import WRAPPER, Fakes, run, with_channel


def test_without_a_controller_it_is_srun(fakes: Fakes, env: dict[str, str]) -> None:
    """No channel: srun with the same options, as many tasks as the job has now, and an environment that tells its real
    shape. Eight tasks were asked for, and the allocation has three."""
    fakes.install(tasks=3)
    done = run({**env, "SLURM_TASKS_PER_NODE": "2,1"}, "--label", "-t", "5", "--", "python", "train.py", "--", "-x")
    assert done.returncode == 0, done.stderr
    (call,) = fakes.calls("srun")
    assert call["argv"][1:] == ["--label", "-t", "5", "-N", "2", "-n", "3", "--", "python", "train.py", "--", "-x"]
    seen = call["env"]
    assert not [name for name in shape.STALE if name in seen]
    assert (seen["SLURM_JOB_NUM_NODES"], seen["SLURM_GPUS_ON_NODE"]) == ("2", "1")
    assert seen["HADAR_JOB_DIR"] == f"{env['SLURM_SUBMIT_DIR']}/.hadar/77"
    assert seen["HADAR_MASTER_ADDR"] == "10.1.2.3"
    assert 1024 < int(seen["HADAR_MASTER_PORT"]) < 32768
    (asked,) = fakes.calls("squeue")
    fields = ("RestartCnt", "SubmitTime", "NumTasks", "tres-per-node", "WorkDir", "Comment")
    assert asked["argv"][-1] == "--Format=" + ",".join(f"{field}:{SEP}" for field in fields)
    assert done.stderr == ""


def test_how_its_owner_wants_to_see_jobs_is_no_matter(fakes: Fakes, env: dict[str, str]) -> None:
    """What squeue says of the job tells whose its directory is: times with blanks, or relative ones, would make it an
    earlier job's in the next run. The command itself has its owner's settings."""
    wishes = {"SLURM_TIME_FORMAT": "relative", "SQUEUE_PARTITION": "gpu"}
    assert run({**env, **wishes}, "--", "true").returncode == 0
    (asked,), (step,) = fakes.calls("squeue"), fakes.calls("srun")
    assert asked["env"]["SLURM_TIME_FORMAT"] == "standard" and "SQUEUE_PARTITION" not in asked["env"]
    assert wishes.items() <= step["env"].items()


def test_steps_of_one_job_meet_at_ports_of_their_own(fakes: Fakes, env: dict[str, str]) -> None:
    """A script may start several at once, none of which has taken its port when the next one looks for one."""
    for _ in range(2):
        run(env, "--", "python", "train.py")
    first, second = (call["env"]["HADAR_MASTER_PORT"] for call in fakes.calls("srun"))
    assert first != second


def test_a_graph_that_cannot_be_followed_is_one_line(fakes: Fakes, env: dict[str, str]) -> None:
    """Then srun goes by its own order, as for a job without one; on a single node nothing is asked at all."""
    fakes.install(comment="hadar:graph=gpt2/pp2")
    done = run(env, "--", "python", "train.py")
    why = "Slurm does not tell which GPUs the job has on which node"
    assert done.stderr == f"hadar: ranks are placed by srun, not by the job's graph: {why}\n"
    run({**env, "SLURM_JOB_NUM_NODES": "1"}, "--", "python", "train.py")
    first, second = fakes.calls("srun")
    assert first["argv"][1:] == ["-N", "2", "-n", "2", "--", "python", "train.py"]
    assert "HADAR_RANKS" not in first["env"] and len(fakes.calls("squeue")) == 2 and second["argv"][2] == "1"


@pytest.mark.parametrize("shape", [["-n4"], ["-N", "1", "-n2"], ["--ntasks=4"], ["--ntasks-per-node=2"]])
def test_the_users_shape_stands(fakes: Fakes, env: dict[str, str], shape: list[str]) -> None:
    """Any word about tasks leaves the shape to the user."""
    run(env, *shape, "--", "true")
    assert fakes.calls("srun")[0]["argv"][1:] == [*shape, "--", "true"]


@pytest.mark.parametrize(("given", "expected"), [({}, "0"), ({"PYTHONHASHSEED": "7"}, "7")])
def test_sets_of_texts_have_one_order(fakes: Fakes, env: dict[str, str], given: Any, expected: str) -> None:
    """A vocabulary that a script makes of a set has the same numbers after a restart, and in all workers."""
    run({**env, **given}, "true")
    assert fakes.calls("srun")[0]["env"]["PYTHONHASHSEED"] == expected


@pytest.mark.parametrize("code", [0, 1, 137])
def test_the_exit_code_is_sruns(fakes: Fakes, env: dict[str, str], code: int) -> None:
    fakes.install(code=code)
    assert run(env, "true").returncode == code


def test_how_unlike_gpus_are_to_be_used_is_exported(fakes: Fakes, env: dict[str, str]) -> None:
    """The training API balances a gang when the comment says so."""
    with_channel(env)
    fakes.install(comment="hadar:model=lm,batch=5,mix=balanced")
    done = run(env, "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert fakes.calls("srun")[0]["env"]["HADAR_MIX"] == "balanced"


@pytest.mark.parametrize(
    ("told", "memory"),
    [
        ({"HADAR_SHARE_MEMORY": "16GiB"}, (600 << 20, 3000 << 20)),
        ({"HADAR_SHARE_MEMORY": "1GiB"}, (600 << 20, 424 << 20)),
        ({"HADAR_SHARE_MEMORY": "16GiB", "HADAR_SHARE_PERSISTENT": "7"}, (7, None)),
        ({}, (None, None)),
    ],
)
def test_a_job_with_shards_declares_what_its_like_took(
    fakes: Fakes, env: dict[str, str], told: dict[str, str], memory: tuple[int | None, int | None]
) -> None:
    """Where memory is counted, and its owner says nothing of it; never more than the GPU has."""
    fakes.install(comment="hadar:model=lm,batch=5,needs=600+3000")
    done = run({**env, "SLURM_SHARDS_ON_NODE": "1", **told}, "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    given = fakes.calls("srun")[0]["env"]
    declared = (given.get(f"HADAR_SHARE_{which}") for which in ("PERSISTENT", "EPHEMERAL"))
    assert tuple(text and int(text) for text in declared) == memory
    assert ("HADAR_SHARE_LEARNED" in given) == (memory[1] is not None)


_AT_A_TERMINAL = """
import fcntl, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
behind = subprocess.Popen(sys.argv[2:], process_group=0 if sys.argv[1] == "behind" else None)
print(behind.pid, flush=True)
sys.exit(behind.wait())
"""


@pytest.mark.parametrize("where", ["behind", "before"])
def test_behind_others_at_a_terminal_srun_reads_nothing_that_is_typed(
    fakes: Fakes, env: dict[str, str], where: str
) -> None:
    """It is stopped if it tries: in a session of its own, as where it is a child, it would not be."""
    leader, terminal = os.openpty()
    try:
        driver = [sys.executable, "-c", _AT_A_TERMINAL, where, str(WRAPPER), "--", "true"]
        done = subprocess.run(
            driver, env=env, stdin=terminal, capture_output=True, text=True, start_new_session=True, timeout=60
        )
    finally:
        os.close(leader)
        os.close(terminal)
    assert done.returncode == 0, done.stderr
    (call,) = fakes.calls("srun")
    assert (call["pid"] == int(done.stdout)) == (where == "behind")


@pytest.mark.parametrize("options", [[], ["--pty"]])
def test_a_job_with_shards_takes_turns_from_salloc_too_or_says_that_it_takes_none(
    fakes: Fakes, env: dict[str, str], options: list[str]
) -> None:
    """Where only Slurm tells of the shards: no variable does outside of the allocation's nodes."""
    fakes.install(comment="", tres="gres:shard:1")
    done = run(env, *options, "--", "python", "train.py")
    (call,) = fakes.calls("srun")
    assert ("slurm_hadar.runtime.agent" in " ".join(call["argv"])) == (not options)
    assert ("takes no turns" in done.stderr) == bool(options), done.stderr


def test_a_copy_of_a_forked_job_learns_where_the_others_are(fakes: Fakes, env: dict[str, str]) -> None:
    """Without any controller too, and after a restart in the same place; other arrays stay what they are."""
    env |= {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}
    fakes.install(comment="hadar:fork=auto,period=30s")
    for restart in ("0", "1"):
        assert run({**env, "SLURM_RESTART_COUNT": restart}, "--", "python", "train.py").returncode == 0
        fakes.install(comment="hadar:fork=auto,period=30s", submit="2026-11-20T12:34:56")  # Slurm resets it
    for call in fakes.calls("srun"):
        seen = call["env"]
        where = f"{env['SLURM_SUBMIT_DIR']}/.hadar/70/fork-20261120T100000"
        assert (seen["HADAR_FORK_DIR"], seen["HADAR_FORK_COPY"], seen["HADAR_PERIOD"]) == (where, "3", "30s")
    for text in ("hadar:model=lm", "someone else's"):
        fakes.install(comment=text)
        run(env, "--", "true")
        assert "HADAR_FORK_DIR" not in fakes.calls("srun")[-1]["env"]


@pytest.mark.parametrize("text", ["hadar:fork=often", "hadar:fork=auto,foo=1"])
def test_a_copy_that_cannot_know_the_others_does_not_start(fakes: Fakes, env: dict[str, str], text: str) -> None:
    """It would train the whole job by itself."""
    fakes.install(comment=text)
    done = run({**env, "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}, "--", "true")
    assert done.returncode == 1 and not fakes.calls("srun")
    assert "is not started so" in done.stderr and len(done.stderr.splitlines()) == 1


def test_with_a_controller_the_agent_stands_before_the_command(fakes: Fakes, env: dict[str, str]) -> None:
    """The key is published once beside what the user wrote; the token is the owner's; the workload is exported."""
    with_channel(env)
    done = run(env, "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    call = fakes.calls("srun")[0]
    assert call["argv"][-3:] == ["--", "python", "train.py"]
    assert "runtime.agent" in " ".join(call["argv"])
    assert (call["env"]["HADAR_MODEL"], call["env"]["HADAR_BATCH"]) == ("lm", "5")
    token_file = Path(env["SLURM_SUBMIT_DIR"]) / ".hadar" / "77" / messages.TOKEN_FILE
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    key = messages.token_fingerprint(token_file.read_text().strip())
    updates = [c["argv"][1:] for c in fakes.calls("scontrol") if "update" in c["argv"]]
    assert updates == [["update", "JobId=77", f"Comment=hadar:model=lm,batch=5,key={key}"]]
    assert reports.VOUCH_LATER not in call["env"]
    fakes.install(comment=f"hadar:model=lm,batch=5,key={key}")
    run(env, "--", "python", "train.py")
    assert len([c for c in fakes.calls("scontrol") if "update" in c["argv"]]) == 1


@pytest.mark.parametrize(
    ("inherited", "options", "begins", "ends"),
    [
        ("SEED=1,CONFIG", [], "--export=SEED=1,CONFIG,", True),
        ("NONE", [], "--export=HADAR_", True),
        ("NONE", ["--export=PATH"], "--export=PATH,", True),
        ("SEED=1", ["--export", "ALL,A=2"], "", False),
        ("ALL,SEED=1", [], "", False),
        ("", [], "", False),
    ],
)
def test_a_step_gets_what_hadar_srun_says_whatever_else_is_left_out(
    fakes: Fakes, env: dict[str, str], inherited: str, options: list[str], begins: str, ends: bool
) -> None:
    """``sbatch --export=SEED=1`` holds for srun too, which would keep the job's directory and where workers meet from
    the step."""
    fakes.install(comment="hadar:retry=2")
    env |= {"HADAR_JOB_DIR": f"{env['SLURM_SUBMIT_DIR']}/own", **({"SLURM_EXPORT_ENV": inherited} if inherited else {})}
    assert run({**env, "HADAR_MASTER_ADDR": "127.0.0.1"}, *options, "--", "true").returncode == 0
    (call,) = fakes.calls("srun")
    words = call["argv"][1 : call["argv"].index("--")]
    added = words[-1] if ends else ""
    assert added.startswith(begins) and (ends or words[: len(options)] == options)
    told = {"HADAR_JOB_DIR", "HADAR_JOB_ID", "HADAR_MASTER_ADDR", "HADAR_RETRY", "PYTHONHASHSEED"}
    assert not ends or told <= set(added.partition("=")[2].split(","))


def test_in_a_container_without_us_the_command_runs_all_the_same(fakes: Fakes, env: dict[str, str]) -> None:
    """The agent's Python is not in there, or is another one: a line says so. Where it is, the agent stands before the
    command as ever."""
    with_channel(env)
    (fakes.directory / "srun").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\n[ -z "$MISSING" ] || '
        'for n; do shift; [ "$n" = "$MISSING" ] && n=/nowhere/python; set -- "$@" "$n"; done\nexec "$@"\n'
    )
    for missing, told in ((env["HADAR_PYTHON"], 1), ("", 0)):
        script = 'echo "$1" ${HADAR_RUN_DIR:+measured}; exit 3'
        done = run({**env, "MISSING": missing}, "--container-image=a.sqsh", "--", "sh", "-c", script, "x", "a  b")
        assert (done.returncode, done.stdout) == (3, "a  b" + ("" if told else " measured") + "\n"), done.stderr
        assert done.stderr.count("the container has no slurm_hadar") == told


def test_slurm_that_wants_to_be_told_the_tasks_is_told(fakes: Fakes, env: dict[str, str]) -> None:
    """24.11 refuses every change of a running job with --ntasks-per-gpu else; the job is heard all the same."""
    with_channel(env)
    scontrol, told = fakes.directory / "scontrol", fakes.directory / "told"
    scontrol.write_text(
        f'#!/bin/sh\necho "$*" >>{told}\ncase "$*" in update*NumTasks=2) ;; '
        'update*) echo "Job is no longer pending execution for job 77" >&2; exit 1 ;; esac\n'
    )
    done = run(env, "--", "true")

    assert done.returncode == 0 and "scontrol failed" not in done.stderr
    assert reports.VOUCH_LATER not in fakes.calls("srun")[0]["env"]
    refused, taken = [line for line in told.read_text().splitlines() if line.startswith("update")]
    assert taken == f"{refused} NumTasks=2"


@pytest.mark.parametrize("text", ["", "my notes", "hadarish:x=1"])
def test_a_job_that_is_not_ours_is_left_alone(fakes: Fakes, env: dict[str, str], text: str) -> None:
    """Without a hadar: comment there is no agent, and the comment stays untouched."""
    with_channel(env)
    fakes.install(comment=text or " ")
    run(env, "--", "true")
    assert fakes.calls("srun")[0]["argv"][-2:] == ["--", "true"]
    assert "agent" not in " ".join(fakes.calls("srun")[0]["argv"])
    assert not [c for c in fakes.calls("scontrol") if "update" in c["argv"]]


def test_a_comment_with_an_error_is_not_touched(fakes: Fakes, env: dict[str, str]) -> None:
    """A comment that breaks the grammar is named, not changed, and the job runs."""
    with_channel(env)
    fakes.install(comment="hadar:modle=lm")
    done = run(env, "--", "true")
    assert done.returncode == 0
    assert "modle" in done.stderr
    assert not [c for c in fakes.calls("scontrol") if "update" in c["argv"]]


def test_slurm_failing_is_one_line(fakes: Fakes, env: dict[str, str]) -> None:
    """slurmctld away: it is said, and the command runs, with the agent, whose reports the spool takes."""
    with_channel(env)
    fakes.install(code=1, names="squeue scontrol")
    done = run(env, "-n1", "--", "true")
    assert done.returncode == 0
    assert "squeue failed, going on without" in done.stderr
    assert "agent" in " ".join(fakes.calls("srun")[0]["argv"])
    assert fakes.calls("srun")[0]["env"][reports.VOUCH_LATER] == "1"


def test_what_slurm_did_not_take_is_published_later(
    fakes: Fakes, env: dict[str, str], monkeypatch: pytest.MonkeyPatch, poll: Any
) -> None:
    """As soon as it answers again, and with what the comment says by then."""
    monkeypatch.setattr(reports, "VOUCH_AGAIN_S", 0.01)
    monkeypatch.setattr(reports, "VOUCH_AGAIN_MOST_S", 0.05)
    monkeypatch.setenv("PATH", env["PATH"])
    with_channel(env)
    fakes.install(code=1, names="squeue scontrol")
    directory = Path(env["SLURM_SUBMIT_DIR"]) / "job"
    directory.mkdir(mode=0o700)
    later = threading.Thread(
        target=reports.vouch_later, args=({"HADAR_JOB_ID": "77", "HADAR_JOB_DIR": str(directory)},), daemon=True
    )
    later.start()
    poll(lambda: len(fakes.calls("squeue")) >= 2)
    fakes.install(comment="hadar:model=lm,asked=4/2/2/8")
    later.join(120)
    assert not later.is_alive()
    key = messages.token_fingerprint((directory / messages.TOKEN_FILE).read_text().strip())
    assert fakes.calls("scontrol")[-1]["argv"][1:] == [
        "update",
        "JobId=77",
        f"Comment=hadar:model=lm,asked=4/2/2/8,key={key}",
    ]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [("hadar:model=lm,asked=1/1/1/1", 1), ("hadar:modle=lm", 0), ("mine", 0)],
    ids=["by the controller at the same time", "with an error", "not ours any more"],
)
def test_a_comment_is_looked_at_again_while_the_job_runs(
    fakes: Fakes, env: dict[str, str], monkeypatch: pytest.MonkeyPatch, written: str, wanted: int
) -> None:
    """A placement that comes as Slurm starts the job has a comment from before."""
    monkeypatch.setattr(reports, "VOUCH_AGAIN_S", 0.01)
    looked, directory = threading.Event(), Path(env["SLURM_SUBMIT_DIR"]) / "job"

    def look(environ: Any) -> None:
        reports.vouch_later(environ)
        looked.set()

    monkeypatch.setattr(reporter, "vouch_later", look)
    directory.mkdir(mode=0o700)
    fakes.install(comment=written)
    for name, value in {**env, "HADAR_JOB_ID": "77", "HADAR_JOB_DIR": str(directory)}.items():
        monkeypatch.setenv(name, value)

    class Quiet:
        """A reporter with nothing to report."""

        def __init__(self, *_given: Any) -> None: ...

        def turn(self, _pipe: int) -> bool:
            return not looked.wait(30)

        def close(self) -> None: ...

    monkeypatch.setattr(reporter, "Reporter", Quiet)
    reporter.main(0, directory)

    assert looked.is_set()
    key = messages.token_fingerprint((directory / messages.TOKEN_FILE).read_text().strip())
    updates = [c["argv"][-1] for c in fakes.calls("scontrol") if "update" in c["argv"]]
    assert updates == [f"Comment={written},key={key}"] * wanted


def test_a_terminal_gets_no_agent(fakes: Fakes, env: dict[str, str]) -> None:
    """An interactive shell keeps its terminal: no agent in between."""
    with_channel(env)
    run(env, "--pty", "bash")
    assert fakes.calls("srun")[0]["argv"][1:] == ["--pty", "-N", "2", "-n", "2", "--", "bash"]


@pytest.mark.usefixtures("fakes")
def test_a_broken_channel_file_does_not_stop_the_job(env: dict[str, str]) -> None:
    """A channel file cut short: one line, then plain srun."""
    (Path(env["SLURM_CONF"]).parent / messages.CHANNEL_FILE).write_text("{")
    done = run(env, "--", "true")
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert messages.CHANNEL_FILE in done.stderr


@pytest.mark.usefixtures("fakes")
def test_restarts_are_announced(env: dict[str, str]) -> None:
    """The log says which run it is, where, and from which step it goes on."""
    checkpoints = Path(env["SLURM_SUBMIT_DIR"]) / ".hadar" / "77" / messages.CHECKPOINTS_DIR
    (checkpoints / "gen-1-step-420").mkdir(parents=True)
    done = run({**env, "SLURM_RESTART_COUNT": "2"}, "--", "true")
    assert done.stderr.startswith("hadar: restart 2 on n[1-2]: resuming from step 420; what stands above of cancelled")


def test_outside_a_job_arguments_are_untouched(fakes: Fakes, env: dict[str, str]) -> None:
    """Not in a job: srun gets exactly what was given."""
    outside = {k: v for k, v in env.items() if not k.startswith("SLURM_J")}
    run(outside, "-N2", "--gres=gpu:1", "hostname")
    assert fakes.calls("srun")[0]["argv"][1:] == ["-N2", "--gres=gpu:1", "hostname"]


def test_without_slurm_one_clear_line(env: dict[str, str], tmp_path: Path) -> None:
    """No srun at all: one line that says so, and the shell's code for it."""
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("sh", "readlink", "dirname"):
        (empty / name).symlink_to(next(p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists()))
    done = run({**env, "PATH": str(empty)}, "true")
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)
    assert "srun is not on PATH" in done.stderr


def test_what_is_said_of_tasks_in_short_stands(fakes: Fakes, env: dict[str, str]) -> None:
    """And is not overridden by the tasks of the allocation."""
    run(env, "--ntasks-per-n=1", "--lab", "true")

    assert fakes.calls("srun")[0]["argv"][1:] == ["--ntasks-per-node=1", "--label", "--", "true"]


def test_where_the_working_directory_is_gone(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """The directory of submission does; where that is not known either, that is one line."""
    gone = tmp_path / "gone"
    start = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    command = ["sh", "-c", start, str(gone), str(WRAPPER), "--", "true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and fakes.calls("srun")[0]["env"]["HADAR_JOB_DIR"].startswith(env["SLURM_SUBMIT_DIR"])

    del env["SLURM_SUBMIT_DIR"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    told = "hadar: not started: the working directory: No such file or directory\n"
    assert done.returncode == 1 and done.stderr.endswith(told) and "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_where_a_standard_file_is_closed_srun_has_one_nevertheless(
    fakes: Fakes, env: dict[str, str], closed: str
) -> None:
    """Else the next file that srun opens is taken for it; and nothing can be flushed that is not there."""
    script = "#!/bin/sh\nfor n in 0 1 2; do [ -e /proc/$$/fd/$n ] || exit 9; done\nexit 3\n"
    (fakes.directory / "srun").write_text(script)
    words = ["sh", "-c", f'exec "$0" "$@" {closed}', str(WRAPPER), "--", "true"]
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (3, "")
