"""Consolidation: what becomes of each kind of tensor."""

import collections
import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from slurm_hadar.errors import CheckpointError  # noqa: E402
from slurm_hadar.runtime.forks import weights  # noqa: E402
from slurm_hadar.runtime.forks.weights import Outer, Source  # noqa: E402
from tests.profiles import examples  # noqa: E402


def store(path: Path, content: dict[str, Any], parameters: tuple[str, ...] = ()) -> Path:
    tensors, plain = weights.pack(content)
    weights.write(path, tensors, {"content": plain, "parameters": parameters})
    return path


def load(path: Path) -> dict[str, Any]:
    tensors, plain = weights.read(path)
    return weights.unpack(tensors, plain["content"])


def merged(tmp_path: Path, *parts: tuple[dict[str, Any], int], **options: Any) -> dict[str, Any]:
    """The consolidation of (content, steps) pairs."""
    sources = [Source(store(tmp_path / f"s{i}", content), steps) for i, (content, steps) in enumerate(parts)]
    weights.consolidate(sources, tmp_path / "out", **options)
    return load(tmp_path / "out")


def trained(optimizer: type, steps: int, **options: Any) -> dict[str, Any]:
    torch.manual_seed(steps)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    opt = optimizer(model.parameters(), lr=0.1, **options)
    for _ in range(steps):
        opt.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        opt.step()
    return {"model": {"": model.state_dict()}, "optimizer": {"": opt.state_dict()}, "user": {"steps": steps}}


@pytest.mark.parametrize(
    ("optimizer", "options", "moments"),
    [(torch.optim.SGD, {"momentum": 0.9}, ["momentum_buffer"]), (torch.optim.AdamW, {}, ["exp_avg", "exp_avg_sq"])],
)
def test_a_real_training_is_averaged_by_steps(
    tmp_path: Path, optimizer: type, options: dict[str, Any], moments: list[Any]
) -> None:
    """Weights and moments are weighted means, counters the largest, plain data that of the busiest copy; and the result
    goes into a model and an optimizer of the same kind."""
    one, two = trained(optimizer, 3, **options), trained(optimizer, 9, **options)
    got = merged(tmp_path, (one, 3), (two, 9))

    for name, value in got["model"][""].items():
        a, b = one["model"][""][name], two["model"][""][name]
        if name.endswith("num_batches_tracked"):
            assert value.item() == 9
        elif not name.endswith("running_var"):
            torch.testing.assert_close(value, 0.25 * a + 0.75 * b)
    for index, state in got["optimizer"][""]["state"].items():
        a, b = (part["optimizer"][""]["state"][index] for part in (one, two))
        for moment in moments:
            torch.testing.assert_close(state[moment], 0.25 * a[moment] + 0.75 * b[moment])
        assert "step" not in state or state["step"] == 9
    assert got["user"] == {"steps": 9}
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    model.load_state_dict(got["model"][""])
    optimizer(model.parameters(), lr=1.0, **options).load_state_dict(got["optimizer"][""])


def test_batch_norm_variance_is_that_of_the_pooled_samples(tmp_path: Path) -> None:
    """Means over equally many samples of two populations give the mean and variance of all of them."""
    torch.manual_seed(0)
    a, b = torch.randn(4000, 5), 3 + 2 * torch.randn(4000, 5)
    parts = [
        ({"model": {"": {"bn.running_mean": x.mean(0), "bn.running_var": x.var(0, correction=0)}}}, 7) for x in (a, b)
    ]
    got = merged(tmp_path, *parts)["model"][""]
    both = torch.cat([a, b])
    torch.testing.assert_close(got["bn.running_mean"], both.mean(0))
    torch.testing.assert_close(got["bn.running_var"], both.var(0, correction=0))


@examples(30)
@given(values=st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 1000)), min_size=1, max_size=5))
def test_means_lie_between_their_parts(
    values: list[tuple[float, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Summed in fp32 whatever the type, copies without steps left out; the same in whatever order they come."""
    if not any(steps for _, steps in values):
        values = [(values[0][0], 1)]
    directory = tmp_path_factory.mktemp("mean")
    parts = [({"model": {"": {"w": torch.full((3,), v, dtype=torch.bfloat16)}}}, s) for v, s in values]
    got = merged(directory, *parts)["model"][""]["w"]
    total = sum(s for _, s in values)
    exact = sum(p["model"][""]["w"].double() * s for p, s in parts) / total
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-6)


def test_tensors_that_only_some_copies_have(tmp_path: Path) -> None:
    """An optimizer has no state for a parameter that has had no gradient yet."""
    a = {"optimizer": {"": {"state": {0: {"exp_avg": torch.ones(2)}}}}}
    b = {"optimizer": {"": {"state": {0: {"exp_avg": torch.zeros(2)}, 1: {"exp_avg": torch.ones(1)}}}}}
    got = merged(tmp_path, (a, 1), (b, 2))["optimizer"][""]["state"]
    torch.testing.assert_close(got[0]["exp_avg"], torch.full((2,), 1 / 3))
    assert got[1]["exp_avg"].item() == 1


def test_flags_and_shared_weights(tmp_path: Path) -> None:
    """Booleans are joined by or; two names of one tensor are both kept."""
    tied = torch.ones(2)
    got = merged(
        tmp_path,
        ({"model": {"": {"seen": torch.tensor([True, False]), "a": tied, "b": tied}}}, 1),
        ({"model": {"": {"seen": torch.tensor([False, False]), "a": tied * 3, "b": tied * 3}}}, 1),
    )["model"][""]
    assert got["seen"].tolist() == [True, False] and got["a"].tolist() == got["b"].tolist() == [2, 2]


def test_the_outer_optimizer_is_nesterov(tmp_path: Path) -> None:
    """Against torch's own SGD with Nesterov momentum, fed with the differences, over several consolidations."""
    outer = Outer(lr=0.7, momentum=0.9)
    reference = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    sgd = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=True)
    base = store(tmp_path / "base", {"model": {"": {"w": reference.data.float(), "buffer": torch.zeros(1)}}})
    for number in range(4):
        start = load(base)["model"][""]["w"]
        mean = start + torch.tensor([0.5, -0.1]) * (number + 1)
        parts = [
            Source(
                store(tmp_path / f"o{i}", {"model": {"": {"w": mean + d, "buffer": torch.ones(1)}}}, ("model//w",)), 5
            )
            for i, d in enumerate((0.2, -0.2))
        ]
        out = tmp_path / f"out{number}"
        weights.consolidate(parts, out, base, outer)
        reference.grad = (start - mean).double()
        sgd.step()
        torch.testing.assert_close(load(out)["model"][""]["w"].double(), reference.data, rtol=1e-5, atol=1e-5)
        assert load(out)["model"][""]["buffer"].item() == 1, "no momentum on what is no parameter"
        base = out


@pytest.mark.parametrize(
    ("before", "after"),
    [(torch.tensor([0.1], dtype=torch.float64), 0.3), (torch.tensor([1 + 2j]), 3 + 5j)],
    ids=["double precision", "complex"],
)
def test_the_outer_optimizer_rounds_nothing_beyond_the_weights_own_type(
    tmp_path: Path, before: Any, after: complex
) -> None:
    """By ``lr=1, momentum=0`` it is plain averaging."""
    base = store(tmp_path / "base", {"model": {"": {"w": before}}})
    content = {"model": {"": {"w": torch.full_like(before, after)}}}
    offer = Source(store(tmp_path / "offer", content, ("model//w",)), 5)

    weights.consolidate([offer, offer], tmp_path / "out", base, Outer(lr=1.0, momentum=0.0))

    got = load(tmp_path / "out")["model"][""]["w"]
    torch.testing.assert_close(got, torch.full_like(before, after), rtol=1e-12, atol=0)


def test_weights_of_one_byte_are_averaged(tmp_path: Path) -> None:
    parts = [({"model": {"": {"w": torch.tensor([v]).to(torch.float8_e4m3fn)}}}, 1) for v in (1.0, 2.0)]
    got = merged(tmp_path, *parts)["model"][""]["w"]
    assert (got.dtype, got.float().item()) == (torch.float8_e4m3fn, 1.5)


def test_tuples_with_names_stay_what_they_are() -> None:
    pair = collections.namedtuple("pair", "rate scale")
    content = {"user": {"best": pair(0.1, torch.ones(1))}}

    back = weights.unpack(*weights.pack(content))

    assert type(back["user"]["best"]) is pair and back == content


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_impossible_outer_settings(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum"):
        Outer(momentum=momentum)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    """At whatever byte a file is cut off."""
    path = store(tmp_path / "s", {"model": {"": {"w": torch.ones(50)}}})
    whole = path.read_bytes()
    for size in (0, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="cannot be read"):
            weights.read(path)
        with pytest.raises(CheckpointError, match="cannot be read"):
            weights.consolidate([Source(path, 1)], tmp_path / "out")


def test_what_cannot_be_saved_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved"):
        store(tmp_path / "s", {"user": {"f": lambda: None}})


def test_the_state_is_a_copy() -> None:
    """Training goes on while an offer is written."""
    model = torch.nn.Linear(2, 2)
    tensors, _ = weights.pack({"model": model.state_dict()})
    before = copy.deepcopy(tensors)
    with torch.no_grad():
        model.weight.add_(1)
    assert all(torch.equal(tensors[n], before[n]) for n in tensors)


def test_a_random_number_generator_is_that_of_the_busiest_copy(tmp_path: Path) -> None:
    """The bytes of two states, mixed, are the state of none."""
    one, two = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    torch.rand(300, generator=two)
    contents = [{"also": {"noise": {"state": dice.get_state()}}} for dice in (one, two)]
    mean = merged(tmp_path, (contents[0], 2), (contents[1], 9))
    assert mean["also"]["noise"]["state"].equal(two.get_state())


def test_tensors_that_have_grown_are_those_of_the_busiest_copy(tmp_path: Path) -> None:
    """As losses so far, one of each step that a copy has made."""
    contents = [{"user": {"losses": torch.full((steps,), float(steps))}} for steps in (3, 5)]
    mean = merged(tmp_path, (contents[0], 3), (contents[1], 5))
    assert mean["user"]["losses"].tolist() == [5.0] * 5
