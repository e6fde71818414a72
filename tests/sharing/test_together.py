"""Commands that share a GPU, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.procstat import stat_of
from slurm_hadar.sharing.gpus import spread
from slurm_hadar.sharing.together import Command

ROOT = Path(__file__).resolve().parents[2]
HADAR = (sys.executable, "-m", "slurm_hadar.cli.main", "share")
STARTS_S = 120.0  # a Python that starts on a busy machine
TURNS = """
import sys, time
from slurm_hadar import sharing
for _ in range(int(sys.argv[1])):
    with sharing.iteration():
        time.sleep(0.005)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def start(short_tmp: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``hadar share`` with these words, in a temporary folder of its own."""
    started = []
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(short_tmp), "HADAR_SHARE_DIR": str(short_tmp / "jobs")}

    def run(*words: str, **more: str) -> subprocess.Popen[str]:
        begun = subprocess.Popen(
            [*HADAR, *words], env=env | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(begun)
        return begun

    yield run
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def turns(short_tmp: Path) -> Callable[[int, int], str]:
    """A job of so many turns that ends with this code."""
    script = short_tmp / "turns.py"
    script.write_text(TURNS)
    return lambda count, code: f"{sys.executable} {script} {count} {code}"


def test_commands_are_read_as_a_shell_reads_them() -> None:
    command = Command.read(2, "A=1 B='x y' python a.py --lr=0.1 'c d'")
    assert (command.environ, command.words) == ({"A": "1", "B": "x y"}, ("python", "a.py", "--lr=0.1", "c d"))
    for text, says in (("", "has no command"), ("A=1", "has no command"), ("a 'b", "cannot be read")):
        with pytest.raises(ConfigError, match=f"job 1, .*{says}"):
            Command.read(1, text)


def test_each_end_is_told_and_the_first_that_fails_gives_the_code(start: Any, turns: Any, short_tmp: Path) -> None:
    done = start("run", turns(120, 0), turns(20, 7), turns(40, 3), "no-such-command --x")
    out, err = done.communicate(timeout=300)

    lines = err.splitlines()
    assert done.returncode == 127 and out == ""
    assert "hadar: job 4: cannot run no-such-command: No such file or directory" in lines
    for job, count, code in ((1, 120, 0), (2, 20, 7), (3, 40, 3)):
        (line,) = (line for line in lines if line.startswith(f"hadar: job {job} ("))
        assert f"ended with {code} after" in line and f": {count} turns, " in line
    assert not list(short_tmp.glob("hadar-share-*"))


def test_a_job_that_dies_costs_the_others_nothing_and_leaves_nothing(start: Any, turns: Any, short_tmp: Path) -> None:
    """By a signal, in mid-turn, with a child that goes on."""
    script = short_tmp / "dies.py"
    script.write_text(
        "import os, subprocess, signal\nfrom slurm_hadar import sharing\n"
        "with sharing.iteration():\n    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(short_tmp / 'child')!r}, 'w').write(str(child.pid))\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = start("run", f"{sys.executable} {script}", turns(50, 0))
    _, err = done.communicate(timeout=300)

    assert done.returncode == 128 + signal.SIGKILL
    assert "ended with 137" in err and ": 50 turns, " in err
    assert not _lives(int((short_tmp / "child").read_text()))


def _lives(pid: int) -> bool:
    try:
        return stat_of(pid).state != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on_to_all(start: Any, short_tmp: Path, poll: Any, signum: signal.Signals) -> None:
    script = short_tmp / "job.py"
    script.write_text(
        "import signal, sys, time\nn = sys.argv[1]\n"
        f"signal.signal({int(signum)}, lambda *_: sys.exit(40 + int(n)))\n"
        f"open({str(short_tmp)!r} + '/up' + n, 'w').close()\ntime.sleep(60)\n"
    )
    run = start("run", *(f"{sys.executable} {script} {n}" for n in (1, 2)))
    poll(lambda: all((short_tmp / f"up{n}").exists() for n in (1, 2)))
    run.send_signal(signum)
    _, err = run.communicate(timeout=300)

    assert run.returncode in {41, 42}
    assert "ended with 41" in err and "ended with 42" in err
    assert not list(short_tmp.glob("hadar-share-*"))


def test_jobs_end_with_the_one_that_runs_them_and_its_socket_is_in_nobodys_way(
    start: Any, short_tmp: Path, poll: Any
) -> None:
    """Killed outright, it can end nobody itself."""
    pid_file = short_tmp / "pid"
    run = start("run", f"sh -c 'echo $$ > {pid_file}; exec sleep 600'")
    pid = int(poll(lambda: pid_file.exists() and pid_file.read_text().endswith("\n") and pid_file.read_text()))
    run.kill()

    poll(lambda: not _lives(pid))
    status = start("status", "--json", "-")
    out, err = status.communicate(timeout=300)
    assert (status.returncode, json.loads(out), err) == (0, {"brokers": []}, "")
    assert list(short_tmp.glob("hadar-share-*/gpu"))
    assert start("run", "true").wait(300) == 0
    assert not list(short_tmp.glob("hadar-share-*"))


def test_status_for_people_and_programs(start: Any, turns: Any, poll: Any) -> None:
    none, _ = start("status").communicate(timeout=STARTS_S)
    assert "no broker of share run or of jobs with shards is here" in none
    run = start("run", "--memory", "2G", "HADAR_SHARE_PERSISTENT=1G HADAR_SHARE_CLASS=x " + turns(100000, 0))

    def told() -> Any:
        out, _ = start("status", "--json", "-").communicate(timeout=STARTS_S)
        brokers = json.loads(out)["brokers"]
        return brokers if brokers and brokers[0]["sessions"] else None

    (broker,) = poll(told, STARTS_S)
    (session,) = broker["sessions"]
    assert (broker["policy"], broker["memory_bytes"], broker["reserved_bytes"]) == ("fair", 2 * 10**9, 10**9)
    assert session["label"].startswith("1: HADAR_SHARE_PERSISTENT=1G") and session["persistent_bytes"] == 10**9
    assert Path(broker["socket"]).parent.stat().st_mode & 0o777 == 0o700
    out, _ = start("status").communicate(timeout=STARTS_S)
    assert "1 GB of 2 GB reserved" in out and "100.0 %" in out
    run.terminate()
    assert run.wait(300) == 128 + signal.SIGTERM


def test_a_job_that_asks_for_more_than_there_is_ends_with_the_reason(start: Any, turns: Any) -> None:
    done = start("run", "--memory", "1G", "HADAR_SHARE_PERSISTENT=2G " + turns(1, 0), turns(5, 0))
    _, err = done.communicate(timeout=300)

    assert done.returncode == 1 and "Traceback" not in err
    assert "refuses this job: 2000000000 bytes are needed, and the GPU has 1000000000 for jobs" in err
    assert ": 5 turns, " in err


def test_wrong_words_are_refused_before_anything_starts(start: Any, short_tmp: Path) -> None:
    for words, code, says in (
        (("run", "true", "'"), 1, 'job 2, "\'", cannot be read: No closing quotation'),
        (
            ("run", "true", "HADAR_SHARE_PERSISTENT=abc true"),
            1,
            "job 2, 'HADAR_SHARE_PERSISTENT=abc true': HADAR_SHARE_PERSISTENT: 'abc' is no size in bytes",
        ),
        (("run", "HADAR_SHARE_SECONDS=nan true"), 1, "HADAR_SHARE_SECONDS must be a number of seconds from 0 to 1e+09"),
        (("run",), 2, "Missing argument"),
        (("status", "--socket", str(short_tmp / "none")), 1, "no broker answers at"),
    ):
        done = start(*words)
        _, err = done.communicate(timeout=300)
        assert done.returncode == code and says in err and "Traceback" not in err


def test_within_another_one_it_is_refused(start: Any, turns: Any) -> None:
    """Its broker would give turns beside those of the outer one."""
    inner = f"{sys.executable} -m slurm_hadar.cli.main share run 'true' 'true'"
    done = start("run", inner, turns(3, 1))
    _, err = done.communicate(timeout=300)

    assert done.returncode == 1 and "takes turns on its GPU already" in err and ": 3 turns, " in err


@pytest.mark.parametrize("shards", ["", "1"])
def test_in_a_job_with_shards_it_says_with_whom_there_are_no_turns(start: Any, shards: str) -> None:
    """Other jobs on the GPU have a broker of their own."""
    done = start("run", "true", SLURM_SHARDS_ON_NODE=shards)
    _, err = done.communicate(timeout=300)

    assert done.returncode == 0 and ("not with other jobs" in err) == bool(shards)


def test_without_a_broker_an_iteration_is_nothing_and_says_so_once(turns: Any) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HADAR_")} | {
        "PYTHONPATH": str(ROOT)
    }
    done = subprocess.run(turns(3, 0).split(), env=env, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0
    assert done.stderr == "hadar: no broker is named (HADAR_SHARE): this job runs as if the GPU were its own\n"


def test_commands_are_spread_over_the_gpus_of_an_allocation(start: Any, short_tmp: Path, poll: Any) -> None:
    """Each sees one, and takes its turns there; ``share status`` shows the brokers of all."""
    script = short_tmp / "sees.py"
    script.write_text(
        "import os, sys, time\nfrom slurm_hadar import sharing\nwith sharing.iteration():\n    pass\n"
        f"open({str(short_tmp)!r} + '/sees' + sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])\n"
        f"while not os.path.exists({str(short_tmp / 'end')!r}):\n    time.sleep(0.02)\n"
    )
    jobs = [f"{sys.executable} {script} {n}" for n in (1, 2, 3)]
    run = start("run", *jobs[:2], f"CUDA_VISIBLE_DEVICES=3 {jobs[2]}", CUDA_VISIBLE_DEVICES="0,3,GPU-8/x")
    poll(lambda: all((short_tmp / f"sees{n}").exists() for n in (1, 2, 3)), STARTS_S)
    out, _ = start("status", "--json", "-").communicate(timeout=STARTS_S)
    (short_tmp / "end").touch()
    _, err = run.communicate(timeout=300)

    assert run.returncode == 0 and "takes no turns" not in err and err.count(": 1 turns, ") == 3
    assert [line for line in err.splitlines() if line.startswith("hadar: GPU")] == [
        "hadar: GPU 0: job 1", "hadar: GPU 3: job 3", "hadar: GPU GPU-8/x: job 2",
    ]  # fmt: skip
    found = {
        Path(one["socket"]).name: [who["label"][:1] for who in one["sessions"]] for one in json.loads(out)["brokers"]
    }
    assert found == {"gpu0": ["1"], "gpu3": ["3"], "gpuGPU-8_x": ["2"]}
    assert [(short_tmp / f"sees{n}").read_text() for n in (1, 2, 3)] == ["0", "GPU-8/x", "3"]


def test_a_gpu_that_nobody_uses_is_told_of_and_one_that_is_not_there_refused(start: Any) -> None:
    done = start("run", "true", CUDA_VISIBLE_DEVICES="0,1")
    _, err = done.communicate(timeout=300)
    assert done.returncode == 0 and "GPU 1 is left idle: there are 2 GPUs, and 1 command\n" in err
    done = start("run", "true", "CUDA_VISIBLE_DEVICES=0,1 true", CUDA_VISIBLE_DEVICES="0,1")
    _, err = done.communicate(timeout=300)
    assert done.returncode == 1 and "job 2: CUDA_VISIBLE_DEVICES=0,1 is none of this allocation's GPUs (0, 1)" in err


def test_the_fewest_commands_go_before_the_least_memory() -> None:
    memory = [{"HADAR_SHARE_PERSISTENT": size} for size in ("6G", "1G", "1G", "1G")]
    assert spread("01", [*memory, {}]) == ["0", "1", "1", "0", "1"]
    assert spread("01", [{}, {"CUDA_VISIBLE_DEVICES": "0"}, {}]) == ["1", "0", "0"]
