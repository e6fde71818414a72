"""What clients send is checked, and what goes between processes comes back as it was."""

from __future__ import annotations

import json
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.cli.main import hadar
from slurm_hadar.errors import ConfigError, ServingError
from slurm_hadar.serving.client import ServingClient, binary_body, outputs_of, trace_of
from slurm_hadar.serving.scheduling.request import MISS, Step
from slurm_hadar.serving.server import run
from slurm_hadar.serving.server.model import ModelInfo, TensorSpec, load_models
from slurm_hadar.serving.server.protocol import binary_data, encode, encode_in_pieces, read_request
from slurm_hadar.serving.server.wire import pack, unpack
from slurm_hadar.serving.server.workers.worker import measured
from slurm_hadar.serving.tensors import DATATYPES

INFO = ModelInfo(
    "m",
    (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("n", "INT8", (1,)), TensorSpec("b", "BOOL", (1,))),
    (TensorSpec("y", "FP32", (1,)),),
)
MODELS = Path(__file__).parents[1] / "models.py"
NO_SOURCES = [
    (f"{MODELS}", "must read FILE.py:FUNCTION"),
    (f"{MODELS}:Sleeper.infer", "must read FILE.py:FUNCTION"),
    ("nothing.py:build", "^nothing.py: No such file or directory$"),
    (f"{Path(__file__).parent / 'nothing'}:build", "its name must end in .py"),
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def _body(**changes: Any) -> dict[str, Any]:
    good = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2.5], [3, 4]]},
            {"name": "n", "datatype": "INT8", "shape": [1], "data": [7]},
            {"name": "b", "datatype": "BOOL", "shape": [1], "data": [True]},
        ],
        "parameters": {"deadline_ms": 50, "application": "chat"},
        "id": "one",
    }
    return good | changes


def _with(place: int, **changes: Any) -> dict[str, Any]:
    body = _body()
    body["inputs"][place] |= changes
    return body


def test_a_request_is_read() -> None:
    asked = read_request(json.dumps(_body()).encode(), INFO)

    assert (asked.identity, asked.application, asked.deadline_s) == ("one", "chat", 0.05)
    assert asked.steps == MISS
    assert asked.inputs["x"].tolist() == [[1.0, 2.5], [3.0, 4.0]]
    assert {name: a.dtype for name, a in asked.inputs.items()} == {"x": np.float32, "n": np.int8, "b": np.bool_}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "JSON object"), (_body(inputs=None), "list of tensors"), (_body(inputs=[]), "takes the inputs b, n, x"),
        (_body(inputs=_body()["inputs"] * 2), "each once"), (_body(id=7), "id must be"),
        (_body(parameters=[]), "parameters must be"), (_body(parameters={"deadline_ms": 0}), "deadline_ms"),
        (_body(parameters={"deadline_ms": True}), "deadline_ms"),
        (_body(parameters={"deadline_ms": "5"}), "deadline_ms"),
        (_body(parameters={"late_costs": [0, 1]}), "must read MS:COST"),
        (_body(parameters={"late_costs": "0:1,"}), "must read MS:COST"),
        (_body(parameters={"late_costs": "5:0.5,5:0.5"}), "each more than"),
        (_body(parameters={"late_costs": "nan:0.5"}), "each more than"),
        (_body(parameters={"late_costs": "-1:0.5"}), "each more than"),
        (_body(parameters={"late_costs": "0:0.6,9:0.6"}), "together at most 1"),
        (_body(parameters={"late_costs": "0:nan"}), "together at most 1"),
        (_body(parameters={"late_costs": ",".join(f"{n}:0.1" for n in range(9))}), "at most 8"),
        (_body(parameters={"application": "a\nb"}), "application"),
        (_body(parameters={"application": "a" * 65}), "application"),
        (_with(0, datatype="FP64"), "datatype of x must be FP32"), (_with(0, shape=[2, 3]), "shape of x"),
        (_with(0, shape=[2]), "shape of x"), (_with(0, shape=[-1, 2]), "whole numbers"),
        (_with(0, shape=[True, 2]), "whole numbers"), (_with(0, shape=[10**4000] * 2), "whole numbers"),
        (_with(0, shape=[2, 2**31], data=[]), "shape of x"),
        (_with(0, data=[1, 2, 3]), "3 values where shape"), (_with(0, data=[[1], [2, 3, 4]]), "ragged"),
        (_with(0, data=["a", "b", "c", "d"]), "not all of FP32"), (_with(0, data=[1e300] * 4), "do not fit"),
        (_with(1, data=[1.5]), "not all of INT8"), (_with(1, data=[300]), "do not fit"),
        (_with(1, data=[10**30]), "not all of"),
        (_with(0, data=[True, 1, 2, 3]), "not all of FP32"), (_with(1, data=[True]), "not all of INT8"),
        (_with(0, data=[None, 1, 2, 3]), "not all of FP32: null is no number; NaN and infinities need binary data"),
        (_with(0, parameters=7), "parameters must be"), (_body(parameters={"binary_data_output": 1}), "true or false"),
        (_body(outputs=[{"name": "y", "parameters": {"binary_data": "yes"}}]), "true or false"),
        (_with(0, parameters={"binary_data_size": 16}), "x has data and binary_data_size"),
        (_with(2, data=[1]), "not all of BOOL"), (_with(1, data=7), "must be a list"),
    ],
)  # fmt: skip
def test_faults_are_named(body: Any, told: str) -> None:
    with pytest.raises(ServingError, match=told) as raised:
        read_request(json.dumps(body).encode(), INFO)
    assert raised.value.status == 400


def _binary(
    array: Any = None, size: Any = None, cut: int | None = None, more: bytes = b"", json_bytes: int | None = None,
    **changes: Any,
) -> tuple[bytes, int]:  # fmt: skip
    """A body whose tensors x and b are binary data, n JSON between them; and how much of it is JSON."""
    x = np.array([[1, np.nan], [np.inf, -0.0]], "<f4") if array is None else array
    body = _with(0, parameters={"binary_data_size": x.nbytes if size is None else size}, shape=[*x.shape], **changes)
    body["inputs"][2] |= {"parameters": {"binary_data_size": 1}}
    for place in (0, 2):
        del body["inputs"][place]["data"]
    told = json.dumps(body).encode()
    whole = told + x.tobytes() + b"\x01" + more
    return whole[:cut], len(told) if json_bytes is None else json_bytes


def test_binary_data_are_read_exactly() -> None:
    body, json_bytes = _binary()
    inputs = read_request(body, INFO, json_bytes).inputs

    assert inputs["x"].tobytes() == np.array([[1, np.nan], [np.inf, -0.0]], "<f4").tobytes()
    assert (inputs["n"].tolist(), inputs["b"].tolist()) == ([7], [True])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"size": 15}, "binary_data_size of x must be 16, as shape [2, 2] of FP32"), ({"size": "16"}, "must be 16"),
        ({"size": True}, "must be 16"), ({"size": -16}, "must be 16"), ({"size": 1 << 80}, "must be 16"),
        ({"cut": -1}, "ends within the binary data of b"), ({"cut": -9}, "ends within the binary data of x"),
        ({"more": b"\x00"}, "has 1 bytes more"), ({"json_bytes": 1 << 60}, "Inference-Header-Content-Length is"),
        ({"json_bytes": 9}, "no JSON"), ({"array": np.zeros((1 << 20, 0), np.float32)}, "shape of x must be"),
        ({"datatype": "BYTES"}, "datatype of x must be FP32"),
    ],
)  # fmt: skip
def test_lies_of_binary_data_are_named(given: dict[str, Any], told: str) -> None:
    body, json_bytes = _binary(**given)

    with pytest.raises(ServingError, match=re.escape(told)) as raised:
        read_request(body, INFO, json_bytes)
    assert raised.value.status == 400


def test_binary_data_need_the_header_and_truth_values_are_0_or_1() -> None:
    body, json_bytes = _binary()
    with pytest.raises(ServingError, match="binary_data_size of x needs the header"):
        read_request(body[:json_bytes], INFO)
    with pytest.raises(ServingError, match="each byte must be 0 or 1"):
        read_request(body[:-1] + b"\x02", INFO, json_bytes)


@given(st.binary(max_size=40), st.integers(0, 1 << 70), JSON, JSON)
def test_nothing_but_refusals_comes_of_hostile_binary_data(data: bytes, json_bytes: int, size: Any, wish: Any) -> None:
    body = _with(0, parameters={"binary_data_size": size})
    del body["inputs"][0]["data"]
    told = json.dumps(body | {"parameters": {"binary_data_output": wish}}).encode()

    for end in (json_bytes, len(told)):
        try:
            read_request(told + data, INFO, end)
        except ServingError as error:
            assert error.status == 400


@given(st.data())
def test_binary_tensors_come_back_bit_by_bit(data: st.DataObject) -> None:
    """By the client's words, through the server's."""
    datatype = data.draw(st.sampled_from(sorted(DATATYPES)))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
    kind = np.dtype(DATATYPES[datatype])
    size = int(np.prod(shape, dtype=int)) * kind.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    array = np.frombuffer(bytes(b & 1 for b in raw) if kind == np.bool_ else raw, kind).reshape(shape)
    spec = TensorSpec("x", datatype, (-1,) * len(shape))
    info = ModelInfo("m", (spec,), (replace(spec, name="y"),))

    asked = read_request(*_sent(array, info))
    pieces = b"".join(encode_in_pieces(info, "", {"y": asked.inputs["x"]}, dict, asked.binary))
    found = outputs_of(json.loads(pieces), memoryview(b"".join(binary_data({"y": asked.inputs["x"]}, asked.binary))))

    assert asked.binary == {"y"}
    assert (found["y"].dtype, found["y"].shape, found["y"].tobytes()) == (kind, tuple(shape), array.tobytes())


def test_an_answer_without_binary_data_is_read_by_its_json() -> None:
    """As a server may give that does not know the extension."""
    array = np.array([[1.5, np.nan], [-2.0, 0.0]], np.float32)
    answer = json.loads(b"".join(encode_in_pieces(INFO, "", {"y": array}, dict, frozenset())))

    found = outputs_of(answer, memoryview(b""))["y"]

    assert found.dtype == np.float32 and np.array_equal(found, array, equal_nan=True)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([], "TypeError"),
        ({}, "KeyError('outputs')"),
        ({"outputs": ["y"]}, "TypeError"),
        ({"outputs": [{"name": "y", "datatype": "INT8", "shape": [1]}]}, "KeyError('data')"),
        ({"outputs": [{"name": "y", "datatype": "INT8", "shape": [2], "data": [1]}]}, "ValueError"),
        ({"outputs": [{"name": "y", "datatype": "INT8", "shape": [1], "data": [1 << 80]}]}, "OverflowError"),
        ({"outputs": [{"name": "y", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}, "KeyError('BYTES')"),
        (
            {"outputs": [{"name": "y", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2}}]},
            "Value",
        ),
        (
            {"outputs": [{"name": "y", "datatype": "INT8", "shape": [1], "parameters": {"binary_data_size": "1"}}]},
            "Type",
        ),
    ],
)
def test_an_answer_that_is_none_is_told_of_in_a_line(answer: Any, why: str) -> None:
    with pytest.raises(ServingError, match=re.escape(why)) as told:
        outputs_of(answer, memoryview(b"1"))

    assert "\n" not in str(told.value)


def _sent(array: Any, info: ModelInfo) -> tuple[bytes, ModelInfo, int]:
    body, json_bytes = binary_body({"x": array})
    return body, info, json_bytes


def test_a_mask_is_not_sent_as_if_there_were_none() -> None:
    with pytest.raises(ServingError, match="x has masked elements"):
        binary_body({"x": np.ma.masked_less([1.0, 2.0], 2)})


@pytest.mark.parametrize("name", [0, None, True, ["0"]])
def test_names_are_texts(name: Any) -> None:
    """Though they may look like one."""
    info = replace(INFO, inputs=(TensorSpec(str(name), "INT8", (1,)),))
    body = {"inputs": [{"name": name, "datatype": "INT8", "shape": [1], "data": [7]}]}

    with pytest.raises(ServingError, match="takes the inputs"):
        read_request(json.dumps(body).encode(), info)


@pytest.mark.parametrize("data", [[2**63, 1], [2**64 - 1, 0], [2**53 + 1, 2**63]])
def test_whole_numbers_on_both_sides_of_what_is_signed(data: list[int]) -> None:
    info = replace(INFO, inputs=(TensorSpec("x", "UINT64", (2,)),))
    body = {"inputs": [{"name": "x", "datatype": "UINT64", "shape": [2], "data": data}]}

    assert read_request(json.dumps(body).encode(), info).inputs["x"].tolist() == data
    for other in (-1, 0.5, 2**64):
        body["inputs"][0]["data"] = [2**63, other]
        with pytest.raises(ServingError, match="data of x"):
            read_request(json.dumps(body).encode(), info)


@pytest.mark.parametrize(
    "data",
    [
        ["a" * 10_000] + [""] * 10_000,
        [["a" * 10_000, 1.0], *[[""] * 2] * 4_999],
        [None] * 10_000,
        [{}] * 10_000,
        [[[[[[[[[[[[1.0]]]]]]]]]]]] * 10_000,
    ],
    ids=["texts", "texts in lists", "nothing", "objects", "too deep"],
)
def test_what_is_no_number_takes_no_more_room_than_the_request(data: list[Any]) -> None:
    """An array of texts would be as wide as the longest of them."""
    body = json.dumps(_with(0, data=data)).encode()
    tracemalloc.start()

    with pytest.raises(ServingError, match="not all of FP32"):
        read_request(body, INFO)

    assert tracemalloc.get_traced_memory()[1] < 40 * len(body) + 1_000_000
    tracemalloc.stop()


def test_lists_as_deep_as_the_shape_or_flat() -> None:
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]], [[1], [2], [3], [4]]):
        assert read_request(json.dumps(_with(0, data=data)).encode(), INFO).inputs["x"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("late_costs", [{0: 2 / 3, 100: 1 / 6, 200: 1 / 6}, {1234567.5: 0.5, 1234568.5: 0.5}])
def test_costs_arrive_as_the_client_has_them(late_costs: dict[float, float]) -> None:
    info = ModelInfo("m", (TensorSpec("x", "FP32", (1,)),), (TensorSpec("y", "FP32", (1,)),))
    body, json_bytes = binary_body({"x": np.zeros(1, np.float32)}, late_costs=late_costs)

    asked = read_request(body, info, json_bytes)

    assert asked.steps == tuple(Step(after / 1e3, cost) for after, cost in late_costs.items())


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h:99999", "http://h:abc", "http://[::1"])
def test_where_a_server_cannot_be(url: str) -> None:
    with pytest.raises(ServingError, match="must read http://HOST:PORT"):
        ServingClient(url)


def test_a_host_that_can_be_no_name_does_not_answer() -> None:
    """A part of a name has at most 63 letters; Python's error of it is none of the network's."""
    with (
        ServingClient(f"http://{'a' * 70}:80") as client,
        pytest.raises(ServingError, match=r"does not answer: .*too long"),
    ):
        client.status()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"inputs": NaN}', b"[" * 100_000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ServingError, match="no JSON"):
        read_request(body, INFO)


@given(JSON, JSON, JSON, JSON)
def test_nothing_but_refusals_comes_of_what_is_hostile(data: Any, shape: Any, tag: Any, deadline: Any) -> None:
    body = _with(0, data=data, shape=shape)
    body["parameters"] = {"application": tag, "deadline_ms": deadline}

    for hostile in (data, body, _body(inputs=data)):
        try:
            read_request(json.dumps(hostile).encode(), INFO)
        except ServingError as error:
            assert error.status == 400


def test_answers_are_json_whatever_the_numbers() -> None:
    told = json.loads(encode(INFO, "one", {"y": np.array([np.nan, 1.0], np.float32)}, {"batch": 4}))

    assert told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2], "data": [None, 1.0]}]
    assert (told["id"], told["parameters"]) == ("one", {"batch": 4})


def test_only_the_outputs_that_are_asked_for() -> None:
    outputs = {name: np.zeros(1, np.float32) for name in ("y", "z")}
    info = replace(INFO, outputs=(*INFO.outputs, TensorSpec("z", "FP32", (1,))))

    def of(*asked: Any) -> list[str]:
        return list(read_request(json.dumps(_body(outputs=list(asked))).encode(), info).of(outputs))

    assert of() == ["y", "z"]
    assert of({"name": "z", "parameters": {"binary_data": False}}) == ["z"]
    faults: list[list[Any]] = [[{"name": "x"}], [{}], ["y"], [{"name": "y"}, {"name": "y"}], [{"name": ["y"]}]]
    for wrong in faults:
        with pytest.raises(ServingError, match="each once: y, z"):
            of(*wrong)
    with pytest.raises(ServingError, match="outputs must be"):
        read_request(json.dumps(_body(outputs="y")).encode(), info)


def test_which_outputs_go_as_binary_data() -> None:
    """By the wish of the output, else by that of the request, of those that are answered."""
    info = replace(INFO, outputs=(*INFO.outputs, TensorSpec("z", "FP32", (1,))))

    def of(*asked: Any, **parameters: Any) -> frozenset[str]:
        body = _body(outputs=list(asked), parameters=parameters)
        return read_request(json.dumps(body).encode(), info).binary

    not_y = {"name": "y", "parameters": {"binary_data": False}}
    assert of() == of(not_y) == of(not_y, binary_data_output=True) == frozenset()
    assert of(binary_data_output=True) == {"y", "z"}
    assert of(not_y, {"name": "z"}, binary_data_output=True) == {"z"}
    assert of({"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}) == {"y"}


def test_large_answers_come_in_pieces_and_their_trace_last() -> None:
    outputs = {"y": np.arange(123_456, dtype=np.float32).reshape(2, -1), "n": np.array(7), "none": np.zeros((0, 3))}
    pieces: list[bytes] = []
    for piece in encode_in_pieces(INFO, "", outputs, lambda: {"pieces": len(pieces)}):
        pieces.append(piece)  # noqa: PERF402 - how many there were when the trace was asked for
    told = json.loads(b"".join(pieces))

    assert max(map(len, pieces)) < 200_000
    assert told["parameters"] == {"pieces": len(pieces) - 1}
    assert [t["name"] for t in told["outputs"]] == list(outputs)
    for tensor in told["outputs"]:
        assert (tensor["shape"], tensor["data"]) == (
            list(outputs[tensor["name"]].shape),
            outputs[tensor["name"]].reshape(-1).tolist(),
        )


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_tensors_cross_processes(datatype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(DATATYPES[datatype]).reshape(shape)
    column = array.copy(order="F")

    header, groups = unpack(pack({"kind": "x"}, [{"a": array}, {"b": column}]))

    assert header == {"kind": "x"}
    for group, name in zip(groups, "ab", strict=True):
        assert group[name].dtype == array.dtype
        assert group[name].shape == shape
        assert (group[name] == array).all()


def test_a_clients_body_is_what_the_server_reads() -> None:
    inputs = {"x": np.ones((1, 2), np.float32), "n": np.array([3], np.int8), "b": np.array([False])}

    body, json_bytes = binary_body(inputs, "chat", 20, {0: 0.75, 500: 0.25})
    asked = read_request(body, INFO, json_bytes)

    assert all((asked.inputs[name] == array).all() for name, array in inputs.items())
    assert asked.steps == (Step(0.0, 0.75), Step(0.5, 0.25))
    with pytest.raises(ServingError, match="is of type"):
        binary_body({"x": np.array(["text"])})


def test_a_trace_in_words() -> None:
    told = {"queued_ms": 12.3, "batch": 4, "ran_ms": 31.0, "total_ms": 43.5, "deadline_ms": 100, "on_time": True,
            "worker": "0.1"}  # fmt: skip

    assert trace_of(told) == "queued 12 ms, batch of 4, ran 31 ms on worker 0.1, deadline 100 ms"
    assert trace_of(told | {"total_ms": 120, "on_time": False}).endswith("deadline 100 ms, 20 ms late")


def test_models_are_built_and_measured() -> None:
    sleeper, _ = load_models(f"{MODELS}:build")
    told, examples = measured(sleeper, 2)

    assert told["applications"] == ["short", "long"]
    assert len(examples) == 2
    assert np.median(told["singles"]["long"]) > np.median(told["singles"]["short"]) > 0.001
    assert set(told["batches"]) == {"1", "2"}


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (f"{MODELS}:broken", "no weights"),
        (f"{MODELS}:nowhere", "nowhere"),
        *NO_SOURCES,
    ],
)
def test_models_that_cannot_be_built(source: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_models(source)


@pytest.mark.parametrize(("source", "told"), NO_SOURCES)
def test_a_file_that_is_not_there_is_said_before_anything_is_opened(
    monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    monkeypatch.setattr(run, "open_socket", lambda *_: pytest.fail("it listens"))

    found = CliRunner().invoke(hadar, ["serve", "run", source, "--port", "0"])

    assert isinstance(found.exception, ConfigError) and re.search(told, str(found.exception))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a/b"}, "needs a name"),
        ({"inputs": []}, "inputs must be"),
        ({"inputs": [("x", "FP99", [1])]}, "FP99"),
        ({"outputs": [("y", "FP32", [-5])]}, "at most 8 lengths"),
        ({"infer": None}, "no method infer"),
    ],
)
def test_models_that_say_too_little(changes: dict[str, Any], told: str) -> None:
    model = load_models(f"{MODELS}:build")[1]
    for name, value in changes.items():
        setattr(model, name, value)

    with pytest.raises(ConfigError, match=told):
        ModelInfo.of(model)
