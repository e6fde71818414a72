"""Tensors that a script computes with beside its model come back to where they were. ``meta`` stands for a GPU."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import slurm_hadar  # noqa: E402
from slurm_hadar.runtime import rng  # noqa: E402
from slurm_hadar.runtime.checkpoint import saver  # noqa: E402
from slurm_hadar.runtime.checkpoint.states.devices import places_of, put_back  # noqa: E402
from slurm_hadar.runtime.forks import run as forked  # noqa: E402

META = "meta"


def parts(device: str, **also: Any) -> dict[str, dict[str, Any]]:
    return {"model": {"": torch.nn.Linear(2, 1, device=device)}, "also": also}


def test_what_is_with_the_model_follows_it() -> None:
    """To whichever device it is on in the next run, at whatever depth; what was in main memory stays there."""
    here, there = torch.zeros(2), torch.zeros(2, device=META)
    places = places_of({"user": {"one": [{"deep": there}], "two": here, "n": 3}, "plain": {"best": there}}, parts(META))
    saved = {"user": {"one": [{"deep": here}], "two": here, "n": 3}, "places": places, "step": 5}
    back = put_back(saved, parts(META))
    assert back["user"]["one"][0]["deep"].device.type == META and back["user"]["two"] is here
    assert (back["user"]["n"], back["step"]) == (3, 5)
    assert put_back(saved, parts("cpu"))["user"]["one"][0]["deep"].device.type == "cpu"


def test_what_is_elsewhere_than_the_model_goes_there_if_it_can() -> None:
    """A device that is not there any more is that of the model."""
    places = places_of({"user": {"far": torch.zeros(2, device=META)}}, parts("cpu"))
    saved = {"user": {"far": torch.zeros(2)}, "places": places}
    assert put_back(saved, parts("cpu"))["user"]["far"].device.type == META
    gone = {**saved, "places": {("user", "far"): "cuda:99"}}
    assert put_back(gone, parts("cpu"))["user"]["far"].device.type == "cpu"


def test_what_is_trained_is_trained_there() -> None:
    """A leaf stays one, and what stands in two places stays one tensor."""
    latent, fixed = torch.zeros(2, requires_grad=True), torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    saved = {"user": {"a": latent, "b": [latent], "c": fixed}}
    places = {("user", "a"): META, ("user", "b", 0): META, ("user", "c"): META}
    back = put_back({**saved, "places": places}, parts("cpu"))["user"]
    assert back["a"].is_leaf and back["a"].requires_grad and back["a"] is back["b"][0]
    assert isinstance(back["c"], torch.nn.Parameter) and not back["c"].requires_grad


def test_a_module_takes_its_parameters_back_itself() -> None:
    """They are not there twice meanwhile. What a metric has beside them is moved."""

    class Metric(torch.nn.Linear):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(2, 1, device=META)
            self.total = torch.zeros((), device=META)

        def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return {**super().state_dict(*args, **kwargs), "total": self.total}

    metric = Metric()
    assert places_of({"also": {"m": metric.state_dict()}}, parts(META, m=metric)) == {("also", "m", "total"): ""}


def test_a_checkpoint_of_an_earlier_version_has_no_places() -> None:
    saved = {"user": {"x": torch.zeros(2)}}
    assert put_back(saved, parts("cpu")) == saved


def test_a_resumed_training_has_them_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of state=, and of an object in also=, which takes what it is given."""

    class Average:
        def __init__(self) -> None:
            self.shadow = {"w": torch.zeros(2)}

        def state_dict(self) -> dict[str, Any]:
            return self.shadow

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.shadow = state

    def trained(steps: int) -> tuple[Any, Average]:
        model, average = torch.nn.Linear(2, 1), Average()
        run = slurm_hadar.train(
            model, None, total_steps=steps, state={"x": torch.ones(2)}, also={"a": average}, directory=tmp_path
        )
        for _ in run:
            pass
        return run, average

    monkeypatch.setattr(saver, "places_of", lambda *_: {("user", "x"): META, ("also", "a", "w"): META})
    trained(2)
    run, average = trained(2)
    assert run.state["x"].device.type == average.shadow["w"].device.type == META


def test_a_copy_of_a_forked_job_has_them_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes over a consolidation when it begins, and after each period."""
    monkeypatch.setenv("HADAR_FORK_DIR", str(tmp_path / "fork"))
    monkeypatch.setenv("HADAR_FORK_COPY", "0")
    monkeypatch.setattr(forked, "places_of", lambda *_: {("user", "x"): META})
    before = rng.capture()
    run: Any = slurm_hadar.train(torch.nn.Linear(2, 1), None, total_steps=4, state={"x": torch.ones(2)})
    try:
        assert run.state["x"].device.type == META
    finally:
        run._stop_beating()  # noqa: SLF001 - no loop is entered, which would
        rng.restore(before)
