"""What is in the file of an objective, and what its trials say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")

from slurm_hadar.errors import ConfigError  # noqa: E402
from slurm_hadar.tuning import session  # noqa: E402
from tests.tuning.conftest import LOOP, PLAIN, RANDOM  # noqa: E402

Study = Callable[..., str]


def test_what_a_file_defines(tmp_path: Path) -> None:
    """In whatever encoding, and wherever it runs when the file does."""
    file = tmp_path / "study.py"
    file.write_bytes("# -*- coding: latin-1 -*-\nif 1:\n    def objective(trial): return 'ä'\n".encode("latin-1"))
    assert session.function_at(f"{file}:objective") == f"{file}:objective"
    file.write_bytes(b"\xef\xbb\xbftry:\n    from a import objective\nexcept ImportError:\n    other: int = 1\n")
    assert session.function_at(f"{file}:objective") == f"{file}:objective"
    with pytest.raises(ConfigError, match="it defines objective, other"):
        session.function_at(f"{file}:neither")
    file.write_text("async def objective(trial):\n    def inner(): pass\n    return 1\n")
    with pytest.raises(ConfigError, match="a coroutine"):
        session.function_at(f"{file}:objective")
    with pytest.raises(ConfigError, match=r"it defines objective$"):
        session.function_at(f"{file}:inner")


@pytest.mark.thorough
def test_a_study_in_a_package_may_import_from_it(tuner: Any, study: Study) -> None:
    package = tuner.folder / "models"
    package.mkdir()
    (package / "net.py").write_text("WIDTH = 3\n")
    told = study("from .net import WIDTH\n" + PLAIN.format(before="assert WIDTH == 3"))
    (tuner.folder / "study.py").rename(package / "study.py")
    words = ("run", f"models/{told}", "--trials", "1", *RANDOM, "--json", "-")

    code, _, said = tuner(*words)
    assert code == 1 and "study.py, line 1: 'from .net import' leads out of its package" in said
    assert not tuner.events("start")

    (package / "__init__.py").touch()
    code, out, said = tuner(*words)
    assert code == 0, said
    command = json.loads(out)["repeat"].replace("python -c", f"{sys.executable} -c", 1)
    assert subprocess.run(command, shell=True, check=False).returncode == 0


@pytest.mark.thorough
def test_files_beside_the_study_do_not_replace_pythons_own(tuner: Any, study: Study) -> None:
    """Nor are they out of its reach."""
    tuner.flags = ["-P"]  # as the command hadar, which looks for modules beside itself
    (tuner.folder / "json.py").write_text("")
    (tuner.folder / "helper.py").write_text("")
    told = study("import helper\n" + PLAIN.format(before="pass"))
    code, _, said = tuner("run", told, "--trials", "1", *RANDOM)
    assert code == 0, said


def test_trials_have_random_numbers_of_their_own(tuner: Any, study: Study) -> None:
    pytest.importorskip("torch")
    text = "import numpy, torch\n" + PLAIN.format(
        before="trial.set_user_attr('drawn', [float(numpy.random.rand()), float(torch.rand(1))])"
    )
    code, _, said = tuner("run", study(text), "--trials", "3", *RANDOM)
    assert code == 0, said
    drawn = [t.user_attrs["drawn"] for t in tuner.trials()]
    assert len({n for n, _ in drawn}) == len({t for _, t in drawn}) == 3


@pytest.mark.thorough
def test_a_message_that_is_too_large_is_refused_at_once(tuner: Any, study: Study) -> None:
    text = PLAIN.format(before="trial.set_user_attr('all', list(range(400_000)))")
    code, _, said = tuner("run", study(text), "--trials", "1", *RANDOM)
    assert code == 1 and re.search(r"ValueError: attribute: [\d,]+ bytes are more than", said), said


@pytest.mark.thorough
def test_reports_from_threads(tuner: Any, study: Study) -> None:
    """One question at a time, and each is answered."""
    text = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def objective(trial):\n"
        "    with ThreadPoolExecutor(8) as pool: list(pool.map(lambda n: trial.report(0.5, n), range(64)))\n"
        "    return trial.suggest_float('x', 0, 1)\n"
    )
    code, _, said = tuner("run", study(text), "--trials", "1", *RANDOM)
    assert code == 0, said
    assert len(tuner.trials()[0].intermediate_values) == 64


@pytest.mark.parametrize(
    ("options", "told"),
    [(["--metric", "loss"], r"returned no 'loss' \(--metric\), but \{'lose': 0.5\}"),
     ([], r"which is no finite number \(of several values, --metric says which\)")],
)  # fmt: skip
def test_a_metric_that_is_not_there_is_named(tuner: Any, study: Study, options: list[str], told: str) -> None:
    objective = study("def objective(trial):\n    return {'lose': 0.5}\n")

    code, _, said = tuner("run", objective, "--trials", "1", *RANDOM, *options)

    assert code == 1 and re.search(told, said), said


@pytest.mark.thorough
def test_a_search_space_that_has_changed_loses_no_trial(tuner: Any, study: Study) -> None:
    """Trials that are to go on wait on until their own space is back."""
    (tuner.folder / "hold").touch()
    running = tuner.start("run", study(steps=3, pace=0.02), "--trials", "3", *RANDOM)
    tuner.until(lambda: len({event["trial"] for event in tuner.events("value")}) == 2)
    tuner("stop")
    running.wait(300)
    waiting = [trial.number for trial in tuner.trials() if trial.state.name == "WAITING"]
    study(LOOP.replace('"x", 0.0, 1.0', '"x", 0.1, 1.0, log=True'), steps=3, pace=0.02)

    code, _, said = tuner("resume", *RANDOM[2:])

    assert code == 1 and len(waiting) == 2
    assert len(re.findall("now asks for another 'x' .*: restore the search space of .*study.py", said)) == 1, said
    assert [trial.number for trial in tuner.trials() if trial.state.name == "WAITING"] == waiting
    study(steps=3, pace=0.02)
    (tuner.folder / "hold").unlink()
    assert tuner("resume", *RANDOM[2:])[0] == 0
    assert [trial.state.name for trial in tuner.trials()] == ["COMPLETE"] * 3
    for number in waiting:
        (file,) = tuner.folder.glob(f"*.hadar/*/trials/{number}/steps")
        steps = [int(line) for line in file.read_text().split()]
        assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("name", ["plain", "my-study", "01_first"])
def test_the_command_that_repeats_a_trial(name: str, tmp_path: Path) -> None:
    """Whatever the file is called."""
    (tmp_path / f"{name}.py").write_text(PLAIN.format(before="pass"))
    options = session.Options(f"{tmp_path}/{name}.py:objective", storage="", study="")
    command = session.repeat_command(options, session.Result(0, 0.25, {"x": 0.25}, True))
    command = command.replace("python -c", f"{sys.executable} -c", 1)
    assert float(subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout) == 0.25
