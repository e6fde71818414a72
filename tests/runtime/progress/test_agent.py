"""The agent: as if it were not there for the command, and the job's voice for the controller."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar import messages

PYTHON = sys.executable
# announces itself, then waits; dies of a signal that it does not expect
SLEEPER = "import time; print('up', flush=True); time.sleep(120)"
SAVER = """
import os, signal, sys, time
from slurm_hadar.runtime.inject._hadar_progress import take_over
take_over(0, 1)
# no print(): the signal may come within the one below, which allows no other
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), os.write(1, b"saved\\n"), sys.exit()))
print("up", flush=True); time.sleep(100)
"""
# its page, by hand: as a training that has made so many steps, and that saves when it is asked to
PAGED = """
import sys, time
from slurm_hadar.runtime.inject import _hadar_progress as shared
words = shared.take_over(0, 1).words
words[shared.STEPS], words[shared.RESUMABLE] = int(sys.argv[1]), 1
while sys.argv[2:] and words[shared.ASKED] == words[shared.ANSWERED]: time.sleep(0.01)
words[shared.SAVED_STEP], words[shared.ANSWERED] = words[shared.STEPS], words[shared.ASKED]
words[shared.SAVES] += 1
"""
PLAIN = """
import sys, time, torch
weight = torch.nn.Parameter(torch.zeros(1)); optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(int(sys.argv[1])):
    weight.grad = torch.ones(1); optimizer.step(); time.sleep(0.01)
print('done', flush=True)
"""
TRAINED = """
import sys, time, torch, slurm_hadar
weight = torch.nn.Parameter(torch.zeros(1)); optimizer = torch.optim.SGD([weight], lr=0.1)
for step in slurm_hadar.train({"w": torch.nn.ParameterList([weight])}, optimizer, total_steps=int(sys.argv[1])):
    weight.grad = torch.ones(1); optimizer.step(); time.sleep(0.01)
    print(step, flush=True)
"""


def stand_in(folder: Path, steps: int) -> list[str]:
    """A training by slurm_hadar.train's own loop that needs no PyTorch, at most 100 steps a second."""
    options = [f"--steps={steps}", "--workers=1", "--nap=0.01", f"--notes={folder / 'notes'}"]
    return [PYTHON, "-m", "benchmarks.fidelity.worker", *options]


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15)])
def test_ends_as_the_command_ends(start_agent: Callable[..., subprocess.Popen[str]], script: str, code: int) -> None:
    """Exit codes and deadly signals of the command are the agent's own."""
    process = start_agent("sh", "-c", script)
    process.communicate(timeout=300)
    assert process.returncode == code


@pytest.mark.parametrize(("command", "code"), [("/no/such/thing", 127), ("/etc", 126)])
def test_a_command_that_cannot_run_is_named(
    start_agent: Callable[..., subprocess.Popen[str]], command: str, code: int
) -> None:
    """What cannot be executed is one line and the shell's exit code."""
    process = start_agent(command)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, command in errors) == (code, True)


def test_input_output_and_arguments_pass_through(start_agent: Callable[..., subprocess.Popen[str]]) -> None:
    """stdin, stdout, stderr and odd arguments reach the command unchanged."""
    import subprocess

    process = start_agent("sh", "-c", 'cat; echo "$1" >&2', "x", "a b'c", stdin=subprocess.PIPE)
    out, errors = process.communicate("typed", timeout=300)
    assert out == "typed"
    assert "a b'c" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_passed_on(start_agent: Callable[..., subprocess.Popen[str]], number: int) -> None:
    """A signal of Slurm reaches the command, and the agent waits for it."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the tests were started with it ignored (nohup), and no shell can trap it then")
    script = f"trap 'echo got; exit 5' {number}; echo up; while :; do sleep 0.05; done"
    process = start_agent("sh", "-c", script)
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert (out, process.returncode) == ("got\n", 5)


def test_a_training_that_outlives_the_command_may_save(start_agent: Callable[..., subprocess.Popen[str]]) -> None:
    """Told to end, the agent stays until it is gone, as Slurm kills what is left then."""
    process = start_agent("sh", "-c", f"{PYTHON} -c '{SAVER}'; true")
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(300) == -signal.SIGTERM
    os.set_blocking(process.stdout.fileno(), False)
    assert process.stdout.read() == "saved\n"


def test_a_training_whose_shell_is_ended_by_a_wish_to_save_saves(
    start_agent: Callable[..., subprocess.Popen[str]],
) -> None:
    """SIGUSR1 ends a shell, or torchrun, whose workers are in sessions of their own."""
    process = start_agent("sh", "-c", f"setsid {PYTHON} -c '{SAVER}' & wait")
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(300) == -signal.SIGUSR1
    os.set_blocking(process.stdout.fileno(), False)
    assert process.stdout.read() == "saved\n"


def test_that_a_command_is_told_to_end_is_said_at_once(
    start_agent: Callable[..., subprocess.Popen[str]], listener: Any, waiting: Callable[..., object]
) -> None:
    """Killed later, it says nothing any more."""
    process = start_agent("sh", "-c", "trap '' TERM; exec sleep 120")
    waiting(lambda: listener.of_kind("hello"), "hello")
    listener.order("save")
    assert process.stderr is not None and "asked to save" in process.stderr.readline()  # it hears the controller
    process.terminate()
    waiting(lambda: any(r.told_to_end for r in listener.of_kind("report")), "that it is told to end")
    process.kill()


def test_the_checkpoint_signal_never_reaches_an_unprepared_command(
    start_agent: Callable[..., subprocess.Popen[str]], listener: Any, waiting: Callable[..., object]
) -> None:
    """SIGUSR2 would kill a program that does not expect it: it stays with the agent, which says so in the log."""
    process = start_agent(PYTHON, "-c", SLEEPER)
    assert process.stdout.readline() == "up\n"
    waiting(lambda: listener.of_kind("hello"), "hello")
    os.killpg(process.pid, signal.SIGUSR2)
    assert "nothing is saved" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == -signal.SIGTERM


@pytest.mark.torch
def test_an_unmodified_script_is_measured(
    start_agent: Callable[..., subprocess.Popen[str]], listener: Any, waiting: Callable[..., object]
) -> None:
    """Steps, speed, memory and the end of a script that knows nothing of us are reported, in rising order."""
    pytest.importorskip("torch")
    process = start_agent(PYTHON, "-c", PLAIN, "300")
    out, errors = process.communicate(timeout=120)
    assert out == "done\n", errors
    waiting(lambda: listener.of_kind("bye"), "the last word, which may be read after the job's end")
    bye = listener.of_kind("bye")[0]
    assert (bye.exit_code, bye.steps, bye.world, bye.resumable) == (0, 300, 1, False)
    assert (bye.job, bye.restart, bye.node) == ("77", 0, "v100-1")
    assert bye.memory_bytes is None or bye.memory_bytes > 10_000_000
    assert any(r.steps_per_s is not None and 0 < r.steps_per_s <= 110 for r in listener.reports)
    numbers = [r.seq for r in listener.reports]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("by", [pytest.param("order", marks=pytest.mark.torch), "signal"])
def test_a_save_is_made_when_asked(
    start_agent: Callable[..., subprocess.Popen[str]],
    listener: Any,
    waiting: Callable[..., object],
    tmp_path: Path,
    by: str,
) -> None:
    """The controller's order, or its signal, makes the training save at once and say so."""
    if by == "order":
        pytest.importorskip("torch")
    training = [PYTHON, "-c", TRAINED, "100000"] if by == "order" else stand_in(tmp_path, 100000)
    process = start_agent(*training, stdout=-3)
    waiting(lambda: any((r.steps or 0) > 5 for r in listener.reports), "steps")
    if by == "order":
        listener.order("save")
    else:
        process.send_signal(signal.SIGUSR2)
    waiting(lambda: listener.of_kind("saved"), "saved")
    saved = listener.of_kind("saved")[0]
    assert saved.resumable
    assert saved.generation == 0
    assert saved.total_steps == 100000
    assert saved.save_s > 0
    assert saved.steps >= saved.saved_step > 5


def test_a_second_training_of_the_command_is_asked_to_save(
    start_agent: Callable[..., subprocess.Popen[str]], listener: Any, waiting: Callable[..., object]
) -> None:
    """The first one has made more steps, has ended, and would never answer."""
    training = f"{PYTHON} -c '{PAGED}'"
    process = start_agent("sh", "-c", f"{training} 1000; {training} 5 waits")
    waiting(lambda: any(r.steps == 5 for r in listener.reports), "the second training")
    listener.order("save")
    waiting(lambda: any(r.saved_step == 5 for r in listener.of_kind("saved")), "its save")
    process.communicate(timeout=300)
    waiting(lambda: listener.of_kind("bye"), "the last word")
    assert listener.of_kind("bye")[0].steps == 5


# looks as the reporter of an agent does after each training: the steps that it tells of, and the files that it has open
LOOKING = """
import os, subprocess, sys
from pathlib import Path
from slurm_hadar.runtime.launch import own
from slurm_hadar.runtime.reporter import Reporter
own.token(Path(os.environ["HADAR_JOB_DIR"]))
reporter = Reporter(Path(os.environ["HADAR_RUN_DIR"]))
for steps in range(1, 9):
    with subprocess.Popen([sys.executable, "-c", sys.argv[1], str(steps)], stdin=-1, stdout=-1) as training:
        training.stdout.read(1)
        there = reporter._make("report", reporter._page()).steps
        training.stdin.close()
    ended = reporter._make("report", reporter._page()).steps
    subprocess.run([sys.executable, "-c", sys.argv[1], "99"], stdin=subprocess.DEVNULL, stdout=-1)  # between two looks
    print(there, ended, len(os.listdir("/proc/self/fd")), len(os.listdir(os.environ["HADAR_RUN_DIR"])))
"""
STAYING = """
import sys
from slurm_hadar.runtime.inject import _hadar_progress as shared
shared.take_over(0, 1).words[shared.STEPS] = int(sys.argv[1])
print(flush=True); sys.stdin.read()
"""


def test_any_number_of_trainings_one_after_the_other(job_env: dict[str, str], tmp_path: Path) -> None:
    """As of a search that starts a program for each try: the last one is told of, and those before take no room."""
    (tmp_path / "run").mkdir()
    environ = job_env | {"HADAR_RUN_DIR": str(tmp_path / "run"), "HADAR_JOB_DIR": str(tmp_path / "job")}
    done = subprocess.run([PYTHON, "-c", LOOKING, STAYING], env=environ, capture_output=True, text=True, timeout=120)

    told = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert [row[:2] for row in told] == [[steps, steps] for steps in range(1, 9)], done.stderr
    assert told[-1][2:] == told[1][2:]


def test_a_pause_ends_when_told_or_by_itself(
    start_agent: Callable[..., subprocess.Popen[str]], listener: Any, waiting: Callable[..., object], tmp_path: Path
) -> None:
    """After a save with a pause no step is made until the controller says go on; and an unanswered pause runs out."""
    start_agent(*stand_in(tmp_path, 100000), stdout=-3)
    waiting(lambda: any((r.steps or 0) > 5 for r in listener.reports), "steps")
    listener.order("save", pause_s=3600.0)
    waiting(lambda: listener.of_kind("saved"), "saved")
    first = listener.of_kind("saved")[0]
    assert first.steps == first.saved_step
    listener.order("go_on")
    waiting(lambda: any((r.steps or 0) > first.saved_step for r in listener.reports), "steps after go_on")
    listener.order("save", pause_s=0.5)
    waiting(lambda: len(listener.of_kind("saved")) > 1, "second save")
    second = listener.of_kind("saved")[1]
    waiting(lambda: any((r.steps or 0) > second.saved_step for r in listener.reports), "steps after the pause")


def test_a_save_that_is_asked_for_too_early_is_made_when_the_training_has_begun(
    start_agent: Callable[..., subprocess.Popen[str]], listener: Any, waiting: Callable[..., object], tmp_path: Path
) -> None:
    """To load data and a checkpoint may take minutes; a wish that was taken back is forgotten."""
    command = ["sh", "-c", 'read line; exec "$@"', "sh", *stand_in(tmp_path, 100000)]
    for taken_back in (True, False):
        process = start_agent(*command, stdin=subprocess.PIPE, stdout=-3)
        waiting(lambda: listener.of_kind("hello"), "hello")
        listener.order("save")
        assert "nothing is saved before a training with slurm_hadar.train has begun" in process.stderr.readline()
        if taken_back:
            listener.order("go_on")
        process.stdin.write("\n")
        process.stdin.flush()
        if taken_back:
            waiting(lambda: any((r.steps or 0) > 50 for r in listener.reports), "steps")
            assert not listener.of_kind("saved")
        else:
            waiting(lambda: listener.of_kind("saved"), "saved")
        process.kill()
        process.communicate()
        listener.reports.clear()


def test_orders_for_another_job_are_dropped(
    start_agent: Callable[..., subprocess.Popen[str]], listener: Any, waiting: Callable[..., object], tmp_path: Path
) -> None:
    """An order that names another job changes nothing."""
    process = start_agent(*stand_in(tmp_path, 200), stdout=-3)
    waiting(lambda: listener.of_kind("hello"), "hello")
    listener.order("save", job="78")
    _, errors = process.communicate(timeout=120)
    assert "dropped an order for job 78" in errors
    waiting(lambda: listener.of_kind("bye"), "the last word, which may be read after the job's end")
    assert [r.saved_step for r in listener.of_kind("saved")] == [200]  # the one at the end


def test_the_reporters_death_changes_nothing(
    start_agent: Callable[..., subprocess.Popen[str]], listener: Any, waiting: Callable[..., object]
) -> None:
    """The reporting half killed: the command goes on, and its exit code is the agent's."""
    process = start_agent("sh", "-c", "echo up; read line; exit 4", stdin=-1)
    assert process.stdout.readline() == "up\n"
    waiting(lambda: listener.of_kind("hello"), "hello")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    reporters = [c for c in children if b"agent" in Path(f"/proc/{c}/cmdline").read_bytes()]
    assert len(reporters) == 1
    os.kill(int(reporters[0]), signal.SIGKILL)
    process.send_signal(signal.SIGUSR2)  # nobody is there to hear it
    process.communicate("\n", timeout=300)
    assert process.returncode == 4


def test_without_a_controller_reports_go_to_the_spool(
    start_agent: Callable[..., subprocess.Popen[str]], job_env: dict[str, str], tmp_path: Path
) -> None:
    """A channel file that leads nowhere: the job runs, and all is in the spool, acceptable line by line."""
    channel = tmp_path / messages.CHANNEL_FILE
    channel.write_text(messages.ChannelInfo(address="tcp://127.0.0.1:1", public_key="a" * 40).to_json())
    job_env["HADAR_CHANNEL"] = str(channel)
    process = start_agent(*stand_in(tmp_path, 50))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    lines = (Path(job_env["HADAR_JOB_DIR"]) / messages.SPOOL_FILE).read_bytes().splitlines()
    reports = [messages.decode_report(line) for line in lines]
    assert (reports[-1].kind, reports[-1].steps, reports[-1].exit_code) == ("bye", 50, 0)


def test_a_job_without_directory_still_runs(
    start_agent: Callable[..., subprocess.Popen[str]], job_env: dict[str, str]
) -> None:
    """No token, no directory, no Slurm: one line, and the command runs as ever."""
    job_env["HADAR_JOB_DIR"] = "/no/such/directory"
    process = start_agent("sh", "-c", "echo fine")
    out, errors = process.communicate(timeout=300)
    assert (out, process.returncode) == ("fine\n", 0)
    assert errors.count("\n") == 1
    assert "no more reports" in errors


def test_tasks_without_rank_0_stay_silent(
    start_agent: Callable[..., subprocess.Popen[str]], job_env: dict[str, str], listener: Any
) -> None:
    """The agent of another task than the first does not speak unless it sees the training's rank 0."""
    job_env["SLURM_PROCID"] = "1"
    process = start_agent("sh", "-c", "exit 0")
    process.communicate(timeout=300)
    assert listener.reports == []


def test_nothing_is_left_behind(start_agent: Callable[..., subprocess.Popen[str]], job_env: dict[str, str]) -> None:
    """The node-local directory of shared pages is gone after the task."""
    process = start_agent("sh", "-c", "echo $HADAR_RUN_DIR")
    out, _ = process.communicate(timeout=300)
    assert job_env["TMPDIR"] in out
    assert not Path(out.strip()).exists()


COUNTED = """
import os, sys, torch, torch._dynamo  # which each child would import at its first step
for body in sys.argv[1:]:
    if not os.fork():
        a, b = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1) for _ in "ab")
        for _ in range(20): exec(body)
        progress = sys.modules["_hadar_progress"]
        print(progress.open_page(0, 1).words[progress.STEPS], flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.torch
def test_several_optimizers_count_as_the_busiest(start_agent: Callable[..., subprocess.Popen[str]]) -> None:
    """With several optimizers the number of steps is that of the one that steps most."""
    pytest.importorskip("torch")
    bodies = ["a.step(); b.step()", "a.step(); a.step(); b.step()", "a.step()"]
    out, errors = start_agent(PYTHON, "-c", COUNTED, *bodies).communicate(timeout=120)
    assert out.split() == [str(20 * body.count("a.step")) for body in bodies], errors


COMPILED = """
import tempfile, torch, slurm_hadar
model = torch.nn.Linear(4, 4)
adam = torch.optim.Adam(model.parameters())
step, beside = (torch.compile(o.step, backend="eager") for o in (adam, torch.optim.SGD(model.parameters(), lr=0.1)))
def loop(turns):
    for _ in turns:
        adam.zero_grad(); model(torch.randn(8, 4)).sum().backward(); step(); beside()
        yield
print(len(list(loop(range(20)))), __import__("_hadar_progress").open_page(0, 1).words[4])
with tempfile.TemporaryDirectory() as folder:
    print(len(list(loop(slurm_hadar.train(model, adam, total_steps=20, directory=folder)))))
"""


@pytest.mark.torch
@pytest.mark.thorough
def test_compiled_steps_of_an_optimizer_are_counted_and_not_compiled_for_us(
    start_agent: Callable[..., subprocess.Popen[str]], job_env: dict[str, str]
) -> None:
    """Neither anew when what is counted changes, nor with a warning of what cannot be traced."""
    pytest.importorskip("torch")
    job_env["TORCH_LOGS"] = "recompiles"
    out, errors = start_agent(PYTHON, "-c", COMPILED).communicate(timeout=300)
    assert out.split() == ["20", "20", "20"], errors
    assert "Dynamo does not know" not in errors
    assert not [line for line in errors.splitlines() if "__recompiles" in line and "hadar" in line], errors


def test_the_users_own_sitecustomize_still_runs(
    start_agent: Callable[..., subprocess.Popen[str]], job_env: dict[str, str], tmp_path: Path
) -> None:
    """Ours stands in front of it and runs it; PYTHONPATH stays in force."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.OWN = __name__\n")
    job_env["PYTHONPATH"] = f"{own}{os.pathsep}{job_env['PYTHONPATH']}"
    script = "import sys, json; print(json.dumps([OWN, sys.modules['sitecustomize'].__file__]))"
    process = start_agent(PYTHON, "-c", script)
    out, errors = process.communicate(timeout=300)
    assert json.loads(out) == ["sitecustomize", str(own / "sitecustomize.py")], errors
