"""The callbacks in the real libraries: resuming is exact, saves are asked for and answered, nothing else changes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from slurm_hadar import __version__  # noqa: E402
from slurm_hadar.errors import CheckpointError  # noqa: E402
from slurm_hadar.runtime.callbacks.course import Course, Options  # noqa: E402
from slurm_hadar.runtime.callbacks.shard import Place  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RUNS = str(Path(__file__).with_name("callback_runs.py"))
LIBRARIES = ("lightning", "huggingface")
STEPS = 65
MODULES = {"lightning": ("lightning",), "huggingface": ("transformers.trainer",)}  # slow to import
SCRIPT = "import runpy; runpy.run_path({runs!r})['{library}_run']()"
Line = dict[str, Any]


@pytest.fixture
def train(start_script: Callable[..., Any]) -> Callable[..., tuple[list[list[Line]], list[int], str]]:
    """Several runs of one job, in turn: each one's lines, its exit status, and what all of them said on stderr."""

    def train(env: dict[str, str], library: str, *runs: dict[str, str]) -> tuple[list[list[Line]], list[int], str]:
        script = SCRIPT.format(runs=RUNS, library=library)
        done = []
        for variables in runs:
            run = start_script(script, {**env, **variables}, modules=MODULES[library])
            done.append((*run.communicate(500), run.returncode))
        return [read(out) for out, _, _ in done], [code for *_, code in done], "".join(err for _, err, _ in done)

    return train


def read(out: str) -> list[Line]:
    return [json.loads(line) for line in out.splitlines() if line.startswith('{"')]


def elsewhere(env: dict[str, str], name: str, **more: str) -> dict[str, str]:
    return {"HADAR_JOB_DIR": f"{env['HADAR_JOB_DIR']}-{name}", **more}


def follows(run: list[Line], expected: list[Line]) -> bool:
    """Whether a run that was cut off did what the undisturbed one did from some line on."""
    return any(run == expected[start : start + len(run)] for start in range(len(expected)))


@pytest.mark.parametrize(
    ("library", "more", "stops"),
    [
        ("lightning", {}, (9, 26, 38, 51)),
        ("lightning", {"TRAINER": '{"val_check_interval": 4, "accumulate_grad_batches": 2}', "WORKERS": "1"}, (10, 32)),
        ("huggingface", {}, (9, 27, 40)),
        ("lightning", {"WORKERS": "1", "KEPT": "1"}, (20, 44)),
        ("lightning", {"STAGES": "1"}, (20, 35, 53)),
        ("lightning", {"SEVERAL": "1"}, (5, 20, 35, 53)),
        ("lightning", {"RESUMING": "1"}, (10, 35)),
        (
            "lightning",
            {
                "STREAM": "1",
                "TRAINER": '{"max_steps": 50, "val_check_interval": 4, "check_val_every_n_epoch": null}',
            },
            (9, 27, 40),
        ),
        ("lightning", {"ANEW": "1", "TRAINER": '{"reload_dataloaders_every_n_epochs": 1}'}, (18, 30, 45)),
        (
            "lightning",
            {"ANEW": "1", "WORKERS": "1", "KEPT": "1", "TRAINER": '{"reload_dataloaders_every_n_epochs": 2}'},
            (18, 30, 45),
        ),
        ("huggingface", {"TRAINER": '{"max_steps": 23, "gradient_accumulation_steps": 2}'}, (9, 16)),
        (
            "huggingface",
            {"TRAINER": '{"max_steps": 45, "dataloader_num_workers": 1, "dataloader_persistent_workers": true}'},
            (9, 30),
        ),
        ("huggingface", {"STAGES": "1", "TRAINER": '{"max_steps": 33}'}, (9, 20)),
        ("huggingface", {"DATA": "augmented", "TRAINER": '{"max_steps": 33}'}, (5, 20)),
        ("huggingface", {"DATA": "held", "TRAINER": '{"max_steps": 40}'}, (14, 30)),
        ("huggingface", {"DATA": "stream", "TRAINER": '{"max_steps": 45, "eval_strategy": "no"}'}, (9, 27, 40)),
    ],
    ids=[
        "lightning",
        "lightning, validation amid epochs",
        "huggingface",
        "lightning, workers that are kept",
        "lightning, stages and plateaus",
        "lightning, loaders of several lengths",
        "lightning, a loader that says where it is",
        "lightning, a stream",
        "lightning, loaders made anew",
        "lightning, loaders made anew that keep workers",
        "huggingface, accumulating",
        "huggingface, workers that are kept",
        "huggingface, stages",
        "huggingface, augmenting",
        "huggingface, augmenting by a generator that a part of the data holds, to an epoch's end",
        "huggingface, a stream",
    ],
)
def test_killed_and_resumed_is_bit_identical(
    library: str,
    more: Any,
    stops: Any,
    job_env: dict[str, str],
    train: Callable[..., tuple[list[list[Line]], list[int], str]],
) -> None:
    """Killed in several epochs, in their midst and at their ends: the same losses, evaluations and weights, in the same
    order, as a run that was left alone, and that as a run without the callback. Once over, nothing is trained again."""
    runs = [{**more, "STOP": str(stop), "EVERY": "4", "SLURM_RESTART_COUNT": str(n)} for n, stop in enumerate(stops)]
    ends = [{**more, "STOP": "-1", "EVERY": "4", "SLURM_RESTART_COUNT": str(len(stops) + n)} for n in range(2)]
    plain, alone = elsewhere(job_env, "plain", PLAIN="1", **more), elsewhere(job_env, "alone", **more)
    (without, expected, *cut, last, again), statuses, said = train(job_env, library, plain, alone, *runs, *ends)

    assert statuses == [0, 0, *([-9] * len(stops)), 0, 0], said
    assert expected == without
    assert all(follows(run, expected) for run in [*cut, last]), [cut, expected]
    starts = [next(line["batch"] for line in run if "batch" in line) for run in [*cut, last]]
    assert starts[0] <= 1 and all(start > 1 for start in starts[1:])
    assert last[-1] == expected[-1]
    assert again[-1] == expected[-1] and not any("loss" in line for line in again)
    assert said.count("hadar: resumed from gen-") == len(stops) + 1


def test_a_search_before_the_training_is_not_made_again(
    job_env: dict[str, str], train: Callable[..., tuple[list[list[Line]], list[int], str]]
) -> None:
    """Lightning's finders of a learning rate and a batch size: a resumed run goes on, with what the first had found."""
    first = {"ANEW": "1", "SEARCHES": "1", "EVERY": "4"}
    cuts = [{**first, "STOP": str(stop), "SLURM_RESTART_COUNT": str(n)} for n, stop in enumerate((30, 35))]
    alone, end = elsewhere(job_env, "alone", **first), {**first, "SLURM_RESTART_COUNT": "2"}
    (expected, cut, again, last), statuses, said = train(job_env, "lightning", alone, *cuts, end)

    assert statuses == [0, -9, -9, 0], said
    assert cut == expected[: len(cut)] and last[-1] == expected[-1] and last[-1]["rate"] != 0.01
    assert again and follows(again, expected) and follows(last, expected)
    assert "WARNING" not in said


def test_callbacks_that_a_stop_changes_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    """Once, before anything is trained; those that go on exactly are not."""
    from lightning.pytorch import callbacks

    from slurm_hadar.runtime.callbacks.lightning import _tell_of_callbacks

    exact = [callbacks.EarlyStopping("val"), callbacks.BackboneFinetuning()]
    _tell_of_callbacks(SimpleNamespace(callbacks=exact))
    assert capsys.readouterr().err == ""
    _tell_of_callbacks(SimpleNamespace(callbacks=[*exact, callbacks.StochasticWeightAveraging(0.1)]))
    assert "WARNING: Lightning's StochasticWeightAveraging" in capsys.readouterr().err


def holding(net: Any) -> tuple[list[Any], list[Any]]:
    """Callbacks of whose tensors nothing is lost, and those that lose an average."""
    import torch
    from lightning.pytorch import Callback

    class Silent(Callback):
        def __init__(self) -> None:
            self.model, self.images, self.seen, self.features = net, [torch.ones(2, 2)], list[Any](), dict[str, Any]()

        def turn(self) -> None:
            self.last, self.grads = torch.randn(3), {n: torch.randn_like(p) for n, p in net.named_parameters()}
            self.seen.append(self.last)
            self.features["layer"] = self.last

    class Average(Callback):
        def __init__(self, mean: Any) -> None:
            self.mean = mean

        def turn(self) -> None:
            if isinstance(self.mean, dict):
                self.mean.update({n: torch.randn_like(p) for n, p in net.named_parameters()})
            else:
                self.mean[0].data.add_(1)

    class Saved(Average):
        def state_dict(self) -> dict[str, Any]:
            return {"mean": self.mean}

    class Hooked(Average):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None: ...

    names = {n: torch.ones_like(p) for n, p in net.named_parameters()}
    made = [[torch.ones(3)], torch.nn.ParameterList([torch.ones(3)]), names]
    return [Silent(), Saved([torch.ones(3)]), Hooked([torch.ones(3)])], [Average(mean) for mean in made]


def test_callbacks_that_hold_what_nobody_saves_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    """And no others: those with a state, and what refers to the trained model, stays as it is, or begins anew."""
    import torch

    from slurm_hadar.runtime.callbacks.lightning import _without_state
    from slurm_hadar.runtime.callbacks.others import Others

    net = torch.nn.Linear(3, 2)
    silent, losing = holding(net)
    others = Others("Do so")
    for turn in range(12):
        for one in [*silent, *losing]:
            one.turn()
        others.look(_without_state([*silent, *losing]), net, saving=turn > 7)
    said = capsys.readouterr().err
    assert said.count("back: mean of the callback Average. Do so\n") == said.count("WARNING") == len(losing)


@pytest.mark.parametrize("library", LIBRARIES)
def test_told_to_end_it_saves_first(
    library: Any, job_env: dict[str, str], train: Callable[..., tuple[list[list[Line]], list[int], str]]
) -> None:
    """A SIGTERM, as of scontrol requeue: the step is saved, and the process ends by it; no step is made twice. What
    another callback holds and nobody saves was told of before."""
    first = {"STOP": "9", "SIGNAL": "15", "PACE": "0.1", "SLURM_RESTART_COUNT": "0", "AVERAGE": "1"}
    alone = elsewhere(job_env, "alone")
    (expected, cut, last), statuses, said = train(job_env, library, alone, first, {"SLURM_RESTART_COUNT": "1"})

    assert statuses == [0, -15, 0], said
    lost = said.index("hadar: WARNING: not saved, so a move or a restart sets it back: ema of the callback Average.")
    assert lost < said.index("hadar: told to end (SIGTERM); step ") and said.count("WARNING: not saved") == 1
    batches = [[line["batch"] for line in run if "batch" in line] for run in (expected, cut, last)]
    assert batches[1] + batches[2] == batches[0] and len(batches[1]) > 9
    assert last[-1] == expected[-1]


@pytest.mark.parametrize("library", LIBRARIES)
def test_two_workers_save_and_resume_together(
    library: Any, job_env: dict[str, str], run_gang: Callable[..., list[subprocess.CompletedProcess[str]]]
) -> None:
    """Killed and resumed: as a gang that was left alone."""
    source = "import os; os.environ['LOCAL_RANK'] = os.environ['RANK']; " + SCRIPT.format(runs=RUNS, library=library)
    first = {**job_env, "EVERY": "4", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "one"}  # as torchrun does

    def gang(**env: str) -> tuple[list[int], list[Line], str]:
        done = run_gang(source, {**first, **env}, 2, modules=MODULES[library], seconds=180)
        return [d.returncode for d in done], read(done[0].stdout), "".join(d.stderr for d in done)

    _, cut, said = gang(STOP="16", SLURM_RESTART_COUNT="0")
    codes, last, said = gang(SLURM_RESTART_COUNT="1")
    assert codes == [0, 0], said
    alone, expected, _ = gang(**elsewhere(job_env, "alone"))
    assert alone == [0, 0]
    assert cut and follows(cut, expected) and follows(last, expected) and last[-1] == expected[-1]
    assert said.count("hadar: resumed from gen-0-step-") == 1


@pytest.mark.parametrize("library", LIBRARIES)
def test_asked_to_save_it_saves_pauses_and_goes_on(
    library: Any,
    start_agent: Callable[..., subprocess.Popen[str]],
    listener: Any,
    waiting: Callable[..., object],
    job_env: dict[str, str],
) -> None:
    """The order comes through the agent's page; the training waits after its save until it is told to go on."""
    endless: dict[str, Any] = {"max_steps": 100_000}
    endless |= {"max_epochs": -1} if library == "lightning" else {"eval_strategy": "no"}
    job_env["TRAINER"] = json.dumps(endless)
    source = SCRIPT.format(runs=RUNS, library=library)
    agent = start_agent(sys.executable, "-c", source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waiting(lambda: any((r.steps or 0) > 3 for r in listener.reports), "steps", 200)
    listener.order("save", pause_s=300.0)
    waiting(lambda: listener.of_kind("saved"), "a save")
    saved = listener.of_kind("saved")[0]
    assert saved.resumable and saved.saved_step == saved.steps and saved.total_steps == 100_000
    count = len(listener.reports)
    listener.order("go_on")
    waiting(lambda: any(r.steps > saved.steps for r in listener.reports[count:]), "steps after the pause")
    agent.terminate()
    agent.wait(300)
    found, _ = sorted(  # the second was made when it was told to end
        (Path(job_env["HADAR_JOB_DIR"]) / "checkpoints").glob("gen-0-step-*"), key=lambda p: int(p.name.split("-")[-1])
    )
    assert found.name == f"gen-0-step-{saved.steps}"
    assert (
        set(json.loads((found / "manifest.json").read_text())["files"])
        >= {
            "lightning": {"lightning/trainer.ckpt", "lightning/random-0.pt"},
            "huggingface": {
                f"huggingface/checkpoint-{saved.steps}/{f}" for f in ("optimizer.pt", "trainer_state.json")
            },
        }[library]
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_outside_slurm_it_is_an_ordinary_callback(
    library: Any, job_env: dict[str, str], tmp_path: Path, train: Callable[..., tuple[list[list[Line]], list[int], str]]
) -> None:
    """No job, no directory: the training runs to its end and leaves nothing behind."""
    env = {k: v for k, v in job_env.items() if not k.startswith(("SLURM", "HADAR"))}
    (run,), (status,), said = train({**env, "PWD": str(tmp_path)}, library, {"EVERY": "4"})
    assert status == 0, said
    assert run[-1]["steps"] == STEPS and "hadar:" not in said
    assert not list(tmp_path.rglob("gen-*"))


def course(directory: Path, **more: Any) -> Course:
    return Course(Options(directory=directory, **more), "library", Place)


def put(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "file").write_text(text)

    return write


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with the training API: by the manifest's sums, with a line that says why; the one before is found."""
    first = course(tmp_path)
    assert first.find() is None
    first.save(4, put("four"))
    first.save(8, put("eight"))
    (tmp_path / "gen-0-step-8" / "library" / "file").write_text("eighT")
    assert course(tmp_path).find() == tmp_path / "gen-0-step-4" / "library"
    assert "gen-0-step-8 is passed over: file is damaged" in capsys.readouterr().err


def test_what_a_later_version_has_saved_is_read_or_said_not_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A place in the data with more in it than this version knows would be another place."""

    @dataclass(frozen=True)
    class Later(Place):
        more: int = 0

    def keep(run: Course, step: int, place: Place) -> None:
        run.save(step, lambda folder: run.keep_place(folder, place))

    first = course(tmp_path)
    first.find()
    keep(first, 4, Place(epoch=1, used=4))
    keep(first, 8, Later(epoch=2, used=0))
    manifest = tmp_path / "gen-0-step-8" / "manifest.json"
    content = json.loads(manifest.read_text())
    assert content["version"] == __version__
    manifest.write_text(json.dumps({**content, "version": "99.0"}))
    second = course(tmp_path)
    folder = second.find()
    assert folder == tmp_path / "gen-0-step-4" / "library"
    assert second.place_in(folder) == Place(epoch=1, used=4)
    told = f"saved by slurm_hadar 99.0, and {__version__} does not know all of its place in the data (more)"
    assert f"gen-0-step-8 is passed over: it was {told}" in capsys.readouterr().err


def test_another_number_of_workers_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = course(tmp_path)
    first.find()
    first.save(4, put("four"))
    manifest = tmp_path / "gen-0-step-4" / "manifest.json"
    for world in (1, 2):
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"world": world}))
        assert course(tmp_path).find() is not None
        told = "WARNING: gen-0-step-4 was saved by 2 workers, and 1 go on" in capsys.readouterr().err
        assert told == (world == 2)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the library raises: one line, the training goes on, and the earlier checkpoint stays."""
    run = course(tmp_path)
    run.find()
    run.save(4, put("four"))

    def full(folder: Path) -> None:
        (folder / "file").write_text("half")
        raise OSError(28, "No space left on device")

    run.try_save(8, full)
    assert "checkpoint of step 8 was not written to" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["claim", "gen-0-step-4"]


def test_an_older_run_writes_no_more(tmp_path: Path) -> None:
    """A run that goes on beside the one that has taken over spoils nothing."""
    old = course(tmp_path)
    old.find()
    old.save(4, put("four"))
    new = course(tmp_path)
    assert new.find() is not None
    with pytest.raises(CheckpointError, match="run 1 has taken over"):
        old.save(8, put("eight"))
    new.save(5, put("five"))
    assert {p.name for p in tmp_path.glob("gen-*")} == {"gen-0-step-4", "gen-1-step-5"}


def test_checkpoints_of_another_kind_are_refused(tmp_path: Path) -> None:
    """A training that changed its library is told what to do, and does not begin anew in silence."""
    run = course(tmp_path)
    run.find()
    run.save(4, put("four"))
    other = Course(Options(directory=tmp_path), "other", Place)
    with pytest.raises(
        CheckpointError, match="was not saved by this callback; remove it, or give the callback a name="
    ):
        other.find()


def test_copies_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks cannot bring the weights of copies together, and say so."""
    monkeypatch.setenv("HADAR_FORK_DIR", str(tmp_path))
    monkeypatch.setenv("HADAR_FORK_COPY", "0")
    with pytest.raises(CheckpointError, match=r"trains by slurm_hadar\.train only"):
        course(tmp_path)
