"""The ``hadar`` commands as a user types them, on a real Slurm: exit codes, one clear line, JSON, signals."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster

pytestmark = pytest.mark.slurm


def one_line(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The only line that a refused command says, on stderr."""
    assert done.returncode == code and done.stdout == "", done
    (line,) = done.stderr.splitlines()
    return line


def test_one_round_and_what_is_said_about_it(live: Any, poll: Any) -> None:
    """run --once starts a job; queue, explain, history, speeds and config tell of it, to people and as JSON."""
    blocker = live.submit("--gres=gpu:4", "-N6", comment="", script="sleep 600")
    poll(lambda: live.state_of(blocker) == "RUNNING")
    job, other = live.submit("--gres=gpu:2", "--job-name=first one"), live.submit("--gres=gpu:v100:1")
    # a lease that lasts until all below is asked, however busy the machine is
    done = live.hadar("run", "--once", "--mode", "act", "--json", settings=("controller.round_s=200",))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["leases"], told["failed"], told["steered"]) == (1, 0, 1)
    assert [(c["job_id"], c["kind"]) for c in told["changes"]] == [(job, "wait")]

    queue = live.hadar("queue")
    assert queue.returncode == 0 and "Traceback" not in queue.stdout
    shown = rf"^{job} +{live.cluster.user} +first one +pending +2 +- +- +0 % +stated +\d+ s +the GPUs it needs are held"
    assert re.search(shown, queue.stdout, re.MULTILINE), queue.stdout
    lines = {line["job_id"]: line for line in json.loads(live.hadar("queue", "--json").stdout)}
    assert lines[other]["tier"] == "pinned" and lines[job]["tier"] == "waits-for-capacity"
    assert lines[blocker]["where"].count("-") == 6 and "no hadar: comment" in lines[blocker]["why"]
    told_why = live.hadar("explain", job).stdout
    assert told_why.startswith(f"job {job} waits for GPUs that others hold: ")
    assert re.search(rf"^  held by +job {blocker} \({live.cluster.user}, ", told_why, re.MULTILINE), told_why
    assert live.hadar("explain", other).stdout.startswith(f"job {other} is left to Slurm: asks for GPU type v100")

    live.cluster.run(["scancel", blocker])
    poll(lambda: not live.gpus(blocker))
    done = live.hadar("run", "--once", "--mode", "act")
    assert done.returncode == 0 and done.stdout == "" and "1 start" in done.stderr
    assert live.state_of(job) == "RUNNING"

    told_why = live.hadar("explain", job).stdout
    assert told_why.startswith(f"job {job} runs.\n  end          in about "), told_why
    explained = json.loads(live.hadar("explain", job, "--json").stdout)
    low, high = explained["expected"]["end"]
    assert time.time() < low < high
    assert explained["last_decision"]["kind"] == "start" and explained["record"]["steered"] is True
    history = live.hadar("history", job)
    assert history.returncode == 0 and re.search(r"starts +\S+ 2x", history.stdout), history.stdout
    entries = json.loads(live.hadar("history", job, "--json").stdout)
    assert [e.get("kind") or e["outcome"] for e in entries] == ["wait", "ok", "start", "ok"]
    assert live.hadar("speeds").stdout == "nothing has been measured yet: start jobs through hadar-srun\n"
    assert json.loads(live.hadar("speeds", "--json").stdout) == {
        "errors": [],
        "measured": [],
        "shared": [],
        "needs": [],
    }
    assert live.hadar("config", "check").stdout == "configuration is valid\n"
    shown = json.loads(live.hadar("config", "show", "--origin", "--json").stdout)
    assert shown["controller.mode"] == {"value": "act", "origin": "command line"}


def test_what_users_write_does_no_harm_on_a_terminal(live: Any) -> None:
    """Markup, escape sequences and line ends in names and comments are shown as text, each job on its line."""
    evil = "[/red]\x1b[31mred\n[bold"
    jobs = [
        live.submit("--gres=gpu:1", "--hold", f"--job-name={evil}"),
        live.submit("--gres=gpu:1", "--hold", "--comment=hadar:\x1b]0;[/x]=1"),
    ]
    assert live.hadar("run", "--once").returncode == 0

    for command in (("queue",), *(("explain", j) for j in jobs), *(("history", j) for j in jobs)):
        done = live.hadar(*command)
        if command[0] != "history":  # nothing was done to them
            assert done.returncode == 0, done
        assert "\x1b" not in done.stdout + done.stderr and "Traceback" not in done.stderr
    _title, *lines = live.hadar("queue").stdout.splitlines()
    assert [line.split()[0] for line in lines] == jobs and "[/red]?[31mred?[bold" in lines[0] and "[/x]" in lines[1]


def test_advice(live: Any, poll: Any) -> None:
    """Mode advise says what it would do, and does not: nothing about one that runs and excludes the faster nodes."""
    faster = live.submit("--gres=gpu:4", "-N4", "-w", "v100-[1-2],p100-[1-2]", comment="", script="sleep 600")
    poll(lambda: live.state_of(faster) == "RUNNING")
    job = live.submit("--gres=gpu:2")
    bound = live.submit("--gres=gpu:2", "--exclude=v100-[1-2],p100-[1-2]")
    poll(lambda: {live.state_of(job), live.state_of(bound)} == {"RUNNING"})
    live.cluster.run(["scancel", faster])
    poll(lambda: live.state_of(faster) == "CANCELLED" and not live.gpus(faster))
    before = live.show(job)

    done = live.hadar("run", "--once", "--mode", "advise")

    assert done.returncode == 0 and live.show(job) == before
    told = rf"would move {job}: k80-[12] 2xk80 -> \S+ 2x[vp]100  [0-9.]+ -> [0-9.]+ steps/s \(estimated\)\n"
    assert re.fullmatch(told, done.stdout), done.stdout


def test_release_gives_everything_back(live: Any, poll: Any) -> None:
    """Leased and placed jobs are eligible at once, on all nodes, in their owners' shape; a running one goes on."""
    blocker = live.submit("--gres=gpu:4", "-N6", comment="", script="sleep 600")
    poll(lambda: live.state_of(blocker) == "RUNNING")
    leased, steered = live.submit("--gres=gpu:2"), live.submit("--gpus=4", comment=MANY)
    controller = live.controller("jobs.start_timeout_s=1")
    controller.run_round()
    shape = ("TresPerNode=gres:gpu:2", "NumNodes=2-2", "NumTasks=2", "NumCPUs=2", "NodeList=k80-1,k80-2", "TresPerJob=")
    live.cluster.run(["scontrol", "update", f"JobId={steered}", *shape])
    record = live.journal.load_jobs()[steered]
    record.steered = True
    live.journal.save_jobs([record])

    done = live.hadar("release", "--json")

    assert done.returncode == 0 and json.loads(done.stdout) == {
        "released": [leased, steered],
        "failed": {},
        "bound": [],
        "others": [],
    }
    found = {j.job_id: j for j in live.backend.read_jobs()}
    assert all((found[j].eligible or 0) <= found[j].submit + 60 and not found[j].held for j in (leased, steered))
    assert found[steered].req_nodes == () and found[steered].num_nodes == 1
    assert found[steered].gpus[0].count == 4 and live.state_of(blocker) == "RUNNING"
    live.cluster.run(["scancel", blocker])
    poll(lambda: live.state_of(leased) == live.state_of(steered) == "RUNNING", 90)
    assert live.hadar("release").stdout == "0 jobs released\n"
    done = live.hadar("release", "99999")
    assert done.returncode == 1 and "99999: no waiting job that is steered" in done.stderr


def test_release_names_those_that_run_where_they_were_sent(live: Any, poll: Any) -> None:
    """Slurm changes no node list of a job that runs: requeued without a controller, it waits for that node alone."""
    job, other = live.submit("--gres=gpu:2"), live.submit("--gres=gpu:2", "--no-requeue")
    poll(lambda: live.state_of(job) == "RUNNING")
    live.place(**{f"j{job}": {"p100-1": 2}})
    live.controller().run_round()
    assert live.holds(job, {"p100-1": 2})
    named = f"1 job runs on nodes that the controller chose ({job}). If it is requeued, it waits for these nodes"

    done = live.hadar("release")

    assert (done.returncode, done.stdout) == (0, "0 jobs released\n") and named in done.stderr
    assert json.loads(live.hadar("release", job, "--json").stdout) == {
        "released": [],
        "failed": {},
        "bound": [job],
        "others": [],
    }
    assert "bound" not in live.hadar("release", other).stdout
    live.cluster.run(["scontrol", "update", "NodeName=p100-1", "State=DRAIN", "Reason=test"])
    live.cluster.run(["scontrol", "requeue", job])
    poll(lambda: live.state_of(job) == "PENDING", 90)
    assert live.hadar("release").stdout == "1 job released\n"
    poll(lambda: live.state_of(job) == "RUNNING", 180)
    live.cluster.run(["scontrol", "update", "NodeName=p100-1", "State=RESUME"])


MANY = "hadar:model=resnet18,batch=64,steps=20000,ckpt=yes,nodes=1-2"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "--once", "--policy", "magic"), 1, "no policy is called 'magic'; valid policies: allox, asrpt, fifo"),
        (("run", "--once", "--set", "controller.round_s=0"), 1, "controller.round_s = 0: "),
        (
            ("run", "--once", "--set", "controller.rounds=3"),
            1,
            "unknown key controller.rounds; did you mean round_s? valid here: ",
        ),
        (("run", "--config", "/no/such/file"), 1, "configuration file /no/such/file does not exist"),
        (("explain", "99999"), 1, "job 99999 is not known to the controller; is the id right"),
        (("history", "99999"), 1, "nothing is recorded about job 99999; is the id right"),
        (("history", "99999", "--json"), 1, "nothing is recorded about job 99999; is the id right"),
        (("run", "--once", "--set", "slurm.backend=pyslurm"), None, "slurm.backend = pyslurm, but pyslurm"),
    ],
)
def test_refusals_are_one_line(live: Any, arguments: tuple[str, ...], code: int | None, words: str) -> None:
    """What a user can get wrong is answered by one line that names it, and exit code 1."""
    live.journal.save_jobs([])
    if code is None and live.hadar(*arguments).returncode == 0:
        pytest.skip("pyslurm can be used here")
    assert words in one_line(live.hadar(*arguments), 1)


def test_wrong_usage(live: Any) -> None:
    """An option that does not exist is exit code 2."""
    done = live.hadar("run", "--onse")
    assert done.returncode == 2 and "No such option" in done.stderr and "Traceback" not in done.stderr


def test_slurmctld_away(make_cluster: Callable[..., PrivateCluster], make_live: Any) -> None:
    """Every command that needs Slurm says in one line that it is away; what only reads the journal still works."""
    live = make_live(make_cluster("v100:1x1"))
    assert live.hadar("run", "--once").returncode == 0
    live.cluster.kill_slurmctld()

    for arguments in (("run", "--once"), ("queue",), ("release",)):
        line = one_line(live.hadar(*arguments, settings=("slurm.timeout_s=2",)))
        assert re.fullmatch(r"hadar: .*(did not answer within 2 s|does not answer).*", line), line
    assert live.hadar("speeds").returncode == 0


def test_the_daemon_ends_after_the_current_write(live: Any, poll: Any) -> None:
    """SIGTERM in the midst of a round: exit code 0 soon, nothing half done, and the jobs go on."""
    jobs = [live.submit("--gres=gpu:2") for _ in range(3)]
    daemon = live.daemon("--mode", "act", "--round", "1")
    log = live.work / "controller.log"
    poll(lambda: re.search(r"round [2-9]\d* \(act, hadar\)", log.read_text()), 60)

    daemon.send_signal(signal.SIGTERM)

    assert daemon.wait(300) == 0 and "Traceback" not in log.read_text()
    poll(lambda: all(live.state_of(j) == "RUNNING" for j in jobs), 60)


def test_two_controllers_on_one_scope(live: Any, poll: Any, short_tmp: Any) -> None:
    """The second is refused in one line, with the same memory and with another; one for other users is not."""
    daemon = live.daemon("--mode", "act", "--round", "1")
    poll(lambda: "round 1 " in (live.work / "controller.log").read_text(), 60)

    line = one_line(live.hadar("run", "--once"))
    assert line.startswith(f"hadar: another controller (process {daemon.pid}) already uses {live.state}; stop it first")
    elsewhere = f"controller.state_dir={short_tmp}/elsewhere"
    line = one_line(live.hadar("run", "--once", settings=(elsewhere,)))
    assert "another controller on this host already steers all users of cluster" in line
    done = live.hadar("run", "--once", settings=(elsewhere, "controller.users=['alice']"))
    assert done.returncode == 0, done.stderr

    daemon.terminate()
    assert daemon.wait(300) == 0
    assert live.hadar("run", "--once").returncode == 0


def test_two_clusters_of_one_name(make_cluster: Callable[..., PrivateCluster], make_live: Any, poll: Any) -> None:
    """Two people's private clusters on one host may have the same name: each has its controller."""
    one, other = (make_live(make_cluster("v100:1x1", name="twin")) for _ in range(2))
    one.daemon("--mode", "act", "--round", "1")
    poll(lambda: "round 1 " in (one.work / "controller.log").read_text(), 60)

    done = other.hadar("run", "--once", "--mode", "act")

    assert done.returncode == 0, done.stderr
