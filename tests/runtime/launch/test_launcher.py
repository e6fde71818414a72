"""hadar-srun: what it hands to srun, with a fake srun, squeue and scontrol on PATH that write down what they get."""

import os
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar import messages
from slurm_hadar.runtime import launcher, reporter
from slurm_hadar.runtime.launch import nodelist, reports, shape
from slurm_hadar.runtime.launch.slurmctld import SEP, JobFacts, job_facts
from slurm_hadar.runtime.launch.srun_options import split_command
from tests.runtime.launch.batch import WRAPPER, Fakes, run


def with_channel(env: dict[str, str]) -> None:
    path = Path(env["SLURM_CONF"]).parent / messages.CHANNEL_FILE
    path.write_text(messages.ChannelInfo(address="tcp://127.0.0.1:1", public_key="a" * 40).to_json())


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
    fields = ("RestartCnt", "SubmitTime", "NumTasks", "WorkDir", "Comment")
    assert asked["argv"][-1] == "--Format=" + ",".join(f"{field}:{SEP}" for field in fields)
    assert done.stderr == ""


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
    """It becomes srun, so its exit code is srun's."""
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
    later.join(30)
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


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["true"], []),
        (["-n", "4", "true"], ["-n", "4"]),
        (["-n4", "--label", "true", "-n"], ["-n4", "--label"]),
        (["-ln", "4", "true"], ["-ln", "4"]),
        (["-K1", "--mem", "4G", "true"], ["-K1", "--mem", "4G"]),
        (["--exclusive", "-u", "--nodes=2", "true", "--", "x"], ["--exclusive", "-u", "--nodes=2"]),
    ],
)
def test_the_command_is_found_without_dashes(arguments: list[str], options: list[str]) -> None:
    """Without ``--`` the command begins where srun would see it begin."""
    assert split_command(arguments) == (options, arguments[len(options) :])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--ntasks-per-n=1"], ["--ntasks-per-node=1"]),
        (["--ntasks-per-n", "1"], ["--ntasks-per-node", "1"]),
        (["--tasks-per-node=1"], ["--ntasks-per-node=1"]),
        (["--het-g=0", "--overl"], ["--het-group=0", "--overlap"]),
        (["--lab", "-n2"], ["--label", "-n2"]),
        (["--wait=5", "--mem", "4G"], ["--wait=5", "--mem", "4G"]),  # though others begin so
        (["--node=1"], ["--node=1"]),  # srun refuses it: three begin so
        (["--of-a-later-slurm=1"], ["--of-a-later-slurm=1"]),
    ],
)
def test_options_may_be_shortened_as_for_srun(given: list[str], meant: list[str]) -> None:
    for rest in (["true", "--lab"], ["--", "--lab", "true"]):
        assert split_command([*given, *rest]) == (meant, rest[rest[0] == "--" :])


def test_what_is_said_of_tasks_in_short_stands(fakes: Fakes, env: dict[str, str]) -> None:
    """And is not overridden by the tasks of the allocation."""
    run(env, "--ntasks-per-n=1", "--lab", "true")

    assert fakes.calls("srun")[0]["argv"][1:] == ["--ntasks-per-node=1", "--label", "--", "true"]


@pytest.mark.parametrize(
    ("shown", "facts"),
    [
        ("1 |when |8 |/a b |hadar:model=x |", JobFacts(1, "when", 8, Path("/a b"), "hadar:model=x")),
        ("0|when|1|/w", JobFacts(0, "when", 1, Path("/w"), "")),
        ("0|when|1|/w|hadar:|\n0|when|1|/w|other|", JobFacts(0, "when", 1, Path("/w"), "hadar:")),
        ("0|when|1|/w|two\nlines|", JobFacts(0, "when", 1, Path("/w"), "two\nlines")),
        ("N/A|when|/w||", None),
        ("", None),
        (None, None),
    ],
    ids=["all", "no comment", "heterogeneous", "lines", "no count", "nothing", "failed"],
)
def test_what_squeue_says_of_the_job(shown: str | None, facts: JobFacts | None) -> None:
    """All in one call; the leader's of a heterogeneous job; nothing where Slurm does not tell."""
    assert job_facts("77", lambda _command: shown and shown.replace("|", SEP).strip()) == facts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("v100-[1-2,4],p100-1", ["v100-1", "v100-2", "v100-4", "p100-1"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("a[1-2]b[0,3]", ["a1b0", "a1b3", "a2b0", "a2b3"]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    """Slurm's compact form is spelled out, zero-padding kept."""
    assert nodelist.expand(text) == names


@pytest.mark.parametrize("text", ["a[1", "a]1[", "a[x-y]", "a[1-2]]"])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    """A cut or garbled list is an error, not a guess."""
    with pytest.raises(ValueError, match="Slurm node list"):
        nodelist.expand(text)


def test_a_job_that_another_ones_program_has_submitted_has_nothing_of_it(
    fakes: Fakes, env: dict[str, str], tmp_path: Path
) -> None:
    """It inherits the environment of that one's step; what its user has set stays."""
    parent = {**env, "HADAR_MODEL": "mine"}
    run(parent, "--", "true")
    inherited = {**fakes.calls("srun")[0]["env"], "SLURM_JOB_ID": "78", "SLURM_STEP_ID": "0"}

    done = run(inherited, "--", "true")

    seen = fakes.calls("srun")[1]["env"]
    assert done.stderr == "" and "SLURM_STEP_ID" not in seen
    assert (seen["HADAR_JOB_ID"], seen["HADAR_JOB_DIR"]) == ("78", str(tmp_path / ".hadar" / "78"))
    assert seen["HADAR_SET"].startswith("78:HADAR_JOB_DIR HADAR_JOB_ID HADAR_MASTER_ADDR")
    assert seen["HADAR_MODEL"] == "mine" and "HADAR_MODEL" not in seen["HADAR_SET"]
    own = {**parent, "HADAR_JOB_DIR": str(tmp_path / "named")}
    run(own, "--", "true")
    run({**fakes.calls("srun")[2]["env"], "SLURM_JOB_ID": "78"}, "--", "true")
    assert fakes.calls("srun")[3]["env"]["HADAR_JOB_DIR"] == str(tmp_path / "named" / "78")


def test_an_earlier_jobs_directory_is_set_aside(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """A first start never resumes what an earlier job with the same id left; the job's own steps and restarts do."""
    checkpoints = tmp_path / ".hadar" / "77" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "foreign").touch()

    first = run(env, "--", "true")
    assert "was an earlier job's with the same id; moved to 77.before-" in first.stderr
    assert not checkpoints.exists() and len(list((tmp_path / ".hadar").glob("77.before-*/checkpoints/foreign"))) == 1

    (tmp_path / ".hadar" / "77" / "mine").touch()
    assert "earlier job" not in run(env, "--", "true").stderr
    fakes.install(submit="2026-11-20T11:11:11", restarts=1)  # Slurm changes the submit time when a job is requeued
    assert "earlier job" not in run({**env, "SLURM_RESTART_COUNT": "1"}, "--", "true").stderr
    assert (tmp_path / ".hadar" / "77" / "mine").exists()

    fakes.install(submit="2026-11-20T11:11:11")
    assert "earlier job" in run(env, "--", "true").stderr


@pytest.mark.parametrize(
    ("text", "age_s", "ours"), [("", 0, True), ("", 10**8, False), ("cut sho", 0, False)], ids=["empty", "old", "other"]
)
@pytest.mark.usefixtures("fakes")
def test_a_mark_that_a_full_disk_left_empty(
    env: dict[str, str], tmp_path: Path, text: str, age_s: int, ours: bool
) -> None:
    """Made after the job was submitted it is the job's own, whose first run Slurm has forgotten."""
    run(env, "--", "true")
    directory = tmp_path / ".hadar" / "77"
    kept = (directory / "owner").read_text()
    (directory / "owner").write_text(text)
    os.utime(directory / "owner", (time.time() - age_s,) * 2)
    (directory / "mine").touch()

    assert ("earlier job" not in run(env, "--", "true").stderr) is ours

    assert (directory / "mine").exists() is ours and (directory / "owner").read_text() == kept


def test_a_run_that_slurm_has_given_up_starts_nothing(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """A script whose node was lost goes on there; the job's next run, elsewhere, must find its directory as it is."""
    run(env, "--", "true")
    (tmp_path / ".hadar" / "77" / "mine").touch()
    started = len(fakes.calls("srun"))
    fakes.install(submit="2026-11-20T11:11:11", restarts=1)

    done = run(env, "--", "true")

    assert (done.returncode, len(fakes.calls("srun"))) == (143, started) and (
        tmp_path / ".hadar" / "77" / "mine"
    ).exists()
    assert done.stderr == "hadar: run 1 of job 77 is over, Slurm is at run 2: not started\n"

    run({**env, "SLURM_RESTART_COUNT": "2"}, "--", "true")  # a slurmctld that was killed may have lost a count
    assert len(fakes.calls("srun")) == started + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_where_another_users_directory_stands_the_job_has_one_beside_it(
    fakes: Fakes, env: dict[str, str], tmp_path: Path
) -> None:
    """All of the job's files: token, spool, and where copies meet; a line says so."""
    (tmp_path / ".hadar").mkdir()
    os.chown(tmp_path / ".hadar", 65534, -1)
    with_channel(env)
    env |= {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}
    fakes.install(comment="hadar:fork=auto")

    done = run(env, "--", "true")

    home = tmp_path / f".hadar-{os.geteuid()}"
    seen = fakes.calls("srun")[0]["env"]
    assert (seen["HADAR_JOB_DIR"], seen["HADAR_SPOOL"]) == (str(home / "70_3"), str(home / "70_3" / "spool.jsonl"))
    assert seen["HADAR_FORK_DIR"].startswith(f"{home}/70/fork-")
    assert f"{tmp_path}/.hadar belongs to user nobody: this job's files go to {home}/70_3" in done.stderr
    assert not list((tmp_path / ".hadar").iterdir())


def test_a_comment_that_names_another_token(fakes: Fakes, env: dict[str, str]) -> None:
    """The job's own is named instead, and the log says that it was another."""
    with_channel(env)
    fakes.install(comment="hadar:key=0123456789abcdef")

    done = run(env, "--", "true")

    assert "the comment named another token (key=0123456789abcdef): it is replaced by this job's, key=" in done.stderr
    assert [c for c in fakes.calls("scontrol") if "update" in c["argv"]]


def test_a_token_that_others_may_have(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """Then there are no reports, a line says why, and the command runs."""
    with_channel(env)
    run(env, "--", "true")
    token = tmp_path / ".hadar" / "77" / messages.TOKEN_FILE
    token.chmod(0o644)

    done = run(env, "--", "true")

    assert done.returncode == 0 and "agent" not in " ".join(fakes.calls("srun")[-1]["argv"])
    assert f"no reports: {token} is not this job's token" in done.stderr


def test_files_that_are_called_as_modules_of_python(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """A training's own copy.py is no matter, to what starts the ranks as to their agents."""
    for name in ("copy", "queue", "random", "secrets", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the training')\n")
    command = [str(WRAPPER), "--", "true"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and len(fakes.calls("srun")) == 1, done.stderr
    done = subprocess.run(launcher.agent_command(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "usage: " in done.stderr and "the file of the training" not in done.stderr


def test_where_the_working_directory_is_gone(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """The directory of submission does; where that is not known either, that is one line."""
    gone = tmp_path / "gone"
    start = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    command = ["sh", "-c", start, str(gone), str(WRAPPER), "--", "true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and fakes.calls("srun")[0]["env"]["HADAR_JOB_DIR"].startswith(env["SLURM_SUBMIT_DIR"])

    del env["SLURM_SUBMIT_DIR"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    told = "hadar: not started: the working directory: No such file or directory\n"
    assert done.returncode == 1 and done.stderr.endswith(told) and "Traceback" not in done.stderr
