"""Policies by name, their parameters, and third-party plug-ins."""

from importlib import metadata
from typing import Any

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Plan, Snapshot
from slurm_hadar.policies import Policy, get, names, parameters, problems, registry
from slurm_hadar.policies.baselines.fifo import Fifo
from slurm_hadar.policies.hadar.policy import Hadar


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points that exist only in this test: one good, one broken, one that is no policy, one with a taken name."""
    points = [
        metadata.EntryPoint("good", "slurm_hadar.policies.baselines.fifo:Fifo", registry.GROUP),
        metadata.EntryPoint("broken", "no_such_module:Policy", registry.GROUP),
        metadata.EntryPoint("stranger", "builtins:dict", registry.GROUP),
        metadata.EntryPoint("fifo", "builtins:dict", registry.GROUP),
        metadata.EntryPoint("ends", "sys:exit", registry.GROUP),
        metadata.EntryPoint("nameless", f"{__name__}:Nameless", registry.GROUP),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == registry.GROUP else [])


def test_every_name_gives_a_policy_of_that_name() -> None:
    """Each built-in name leads to a policy that calls itself so."""
    for name in (
        *("none", "fifo", "hadar", "hadare", "gavel_las", "gavel_ftf", "gavel_ttd", "gavel_throughput", "gavel_cost"),
        *("tiresias", "srtf", "allox"),
    ):
        assert name in names()
        assert get(name).name == name


def test_unknown_policy_lists_the_valid_ones() -> None:
    """The error names what could have been meant."""
    with pytest.raises(ConfigError, match=r"'hadr'.*fifo.*hadar, hadare, none"):
        get("hadr")


def test_unknown_parameter_lists_the_valid_ones() -> None:
    """The error names the parameters and their defaults."""
    with pytest.raises(ConfigError, match=r"'objectiv'.*objective=jct"):
        get("hadar", objectiv="ttd")
    with pytest.raises(ConfigError, match="valid parameters: none"):
        get("fifo", order="lifo")


def test_text_is_read_as_the_parameters_type() -> None:
    """Values from a command line become numbers and booleans."""
    assert get("hadar", fill="false", effort="7", switch_gain="0.5", objective="ftf") == Hadar(
        objective="ftf", fill=False, effort=7, switch_gain=0.5
    )
    made = get("hadar", effort=7.0)
    assert isinstance(made, Hadar) and made.effort == 7


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fill", "perhaps"),
        ("fill", 3),
        ("effort", "many"),
        ("effort", "1.5"),
        ("effort", 0),
        ("effort", True),
        ("switch_gain", "nan"),
        ("switch_gain", -1),
        ("patience_s", "inf"),
        ("fairness", 1.1),
        ("unknown_runtime_s", 0),
        ("objective", "fame"),
        ("objective", 3),
        ("frontier", 1.5),
    ],
)
def test_impossible_values_are_refused(key: str, value: Any) -> None:
    """A value of the wrong type or out of range is a ConfigError that names the parameter."""
    with pytest.raises(ConfigError, match=key):
        get("hadar", **{key: value})


@pytest.mark.parametrize("frontier", [-0.1, 1.5])
def test_the_frontier_has_two_ends(frontier: float) -> None:
    """From average JCT to TTD, whatever the objective."""
    with pytest.raises(ConfigError, match="frontier"):
        get("hadar", objective="ftf", frontier=frontier)


def test_parameters_can_be_listed() -> None:
    """The defaults are there for help texts."""
    assert parameters("hadar")["objective"] == "jct"
    assert parameters("fifo") == {}


@pytest.mark.usefixtures("plugins")
def test_plugins_are_offered() -> None:
    """A third party's policy is found by its entry point; a built-in keeps its name."""
    assert {"good", "broken", "fifo"} <= set(names())
    assert isinstance(get("good"), Fifo)
    assert isinstance(get("fifo"), Fifo)


@pytest.mark.usefixtures("plugins")
def test_a_broken_plugin_harms_nobody_else() -> None:
    """It is reported in one line, and only asking for it fails."""
    lines = problems()
    assert any(line.startswith("policy plug-in broken (no_such_module:Policy) cannot be loaded") for line in lines)
    assert any("fifo" in line and "taken" in line for line in lines)
    assert all("\n" not in line for line in lines)
    assert get("hadar").name == "hadar"
    with pytest.raises(ConfigError, match="broken"):
        get("broken")


class Nameless(Policy):
    """Has forgotten to say what it is called."""

    def allocate(self, snapshot: Snapshot) -> Plan:
        raise NotImplementedError(snapshot)


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "why"),
    [("stranger", "cannot be read"), ("ends", "cannot be made: SystemExit"),
     ("nameless", "has no name")],
)  # fmt: skip
def test_a_plugin_that_makes_no_policy_is_refused(name: str, why: str) -> None:
    """What an entry point makes must be a Policy."""
    with pytest.raises(ConfigError, match=f"{name}.*{why}"):
        get(name)
