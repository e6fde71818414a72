"""Messages between job and controller: round trips, and refusal of everything else."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar import messages as m
from slurm_hadar.errors import ChannelError

TOKEN = "ab" * 32
REPORT = m.Report(kind="report", job="123_4", restart=1, seq=7, token=TOKEN, time=1.5, node="v100-1", steps=10, world=2)


def wire(**changes: object) -> bytes:
    content = json.loads(m.encode(REPORT))
    content.update(changes)
    return json.dumps({k: v for k, v in content.items() if v != "DROP"}).encode()


def test_report_round_trip() -> None:
    """A report survives the wire, absent fields included."""
    assert m.decode_report(m.encode(REPORT)) == REPORT


def test_order_round_trip() -> None:
    """An order survives the wire."""
    order = m.Order(kind="save", job="9", why="moving to v100-1", pause_s=12.5)
    assert m.decode_order(m.encode(order)) == order


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"version": "DROP"}, "version"),
        ({"kind": "attack"}, "kind"),
        ({"job": "1; rm"}, "job"),
        ({"job": "0"}, "job"),
        ({"seq": -1}, "seq"),
        ({"seq": True}, "seq"),
        ({"seq": 2**70}, "seq"),
        ({"steps": 1.5}, "steps"),
        ({"steps_per_s": "fast"}, "steps_per_s"),
        ({"token": "x" * 64}, "token"),
        ({"token": "DROP"}, "token"),
        ({"node": "n" * 5000}, "node"),
        ({"colour": 1}, "colour"),
        ({"kind": "bye"}, "exit_code"),
        ({"wanted": 0}, "wanted"),
        ({"wanted": -1}, "wanted"),
        ({"wanted": 10**7}, "wanted"),
        ({"wanted": 1.5}, "wanted"),
        ({"kind": "saved"}, "saved_step"),
        ({"time": None}, "time"),
        ({"steps_per_s": 0}, "steps_per_s"),
        ({"steps_per_s": 5e-324}, "steps_per_s"),
        ({"steps_per_s": 1e12}, "steps_per_s"),
        ({"steps": 10**18}, "steps"),
        ({"saved_step": 10**18}, "saved_step"),
        ({"consolidated_steps": 10**18}, "consolidated_steps"),
        ({"save_s": 1e9}, "save_s"),
        ({"consolidate_s": 1e300}, "consolidate_s"),
        ({"duty": 1.1}, "duty"),
        ({"restart": 2**40}, "restart"),
        ({"time": 1e15}, "time"),
        ({"node": "n" * 300}, "node"),
    ],
)
def test_wrong_reports_are_refused(changes: dict[str, Any], word: str) -> None:
    """Each wrong field is refused by one line that names it."""
    with pytest.raises(ChannelError, match=word) as caught:
        m.decode_report(wire(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"[]", b"1", b"{", b"[" * 60000, b'{"version":1,"time":NaN}', b" " * (m.MAX_BYTES + 1)],
)
def test_what_is_not_a_json_object_is_refused(data: bytes) -> None:
    """Garbage of any sort raises ChannelError and nothing else."""
    with pytest.raises(ChannelError):
        m.decode_report(data)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-0.5"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    """Neither NaN nor an infinity nor a negative speed gets in."""
    text = m.encode(REPORT).decode().replace('"time":1.5', f'"time":1.5,"steps_per_s":{number}')
    with pytest.raises(ChannelError):
        m.decode_report(text.encode())


@given(st.binary(max_size=300))
def test_random_bytes_never_crash(data: bytes) -> None:
    """Whatever arrives, the only exception is ChannelError."""
    for decode in (m.decode_report, m.decode_order, m.ChannelInfo.from_json):
        with pytest.raises(ChannelError):
            decode(data)


@given(
    st.dictionaries(
        st.sampled_from([f.name for f in dataclasses.fields(m.Report)]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none(), max_size=2),
    )
)
def test_random_values_never_crash(changes: dict[str, Any]) -> None:
    """Any value in any field is either a valid report, whose rate can be reckoned with, or a ChannelError."""
    content = {**json.loads(m.encode(REPORT)), **changes}
    try:
        report = m.decode_report(json.dumps(content).encode())
    except ChannelError as error:
        assert "\n" not in str(error)
    else:
        assert report.steps_per_s is None or 1e-9 <= report.steps_per_s <= 1e6


def test_a_training_without_an_end_may_say_so() -> None:
    """The largest total is taken: it promises nothing."""
    assert m.decode_report(wire(total_steps=2**63 - 1)).total_steps == 2**63 - 1


def test_canonical_job_id() -> None:
    """Array tasks and heterogeneous jobs go by the id a user knows."""
    assert m.canonical_job_id({}) is None
    assert m.canonical_job_id({"SLURM_JOB_ID": "12"}) == "12"
    array = {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"}
    assert m.canonical_job_id(array) == "12_0"
    assert m.canonical_job_id({"SLURM_JOB_ID": "15", "SLURM_HET_JOB_ID": "14"}) == "14"


def test_restart_count() -> None:
    """Slurm leaves the variable out in the first run."""
    assert m.restart_count({}) == 0
    assert m.restart_count({"SLURM_RESTART_COUNT": "3"}) == 3


def test_job_dir() -> None:
    """The job's directory is below the place of submission unless it is named."""
    assert m.job_dir({}) is None
    assert str(m.job_dir({"SLURM_JOB_ID": "5", "SLURM_SUBMIT_DIR": "/home/a"})) == "/home/a/.hadar/5"
    assert str(m.job_dir({"SLURM_JOB_ID": "5", "HADAR_JOB_DIR": "/x"})) == "/x"


def test_channel_is_found_beside_slurm_conf(tmp_path: Path) -> None:
    """The channel file beside slurm.conf is found; $HADAR_CHANNEL comes first; a broken one is named."""
    info = m.ChannelInfo(address="tcp://10.0.0.1:5555", public_key="k" * 40)
    conf = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    (tmp_path / m.CHANNEL_FILE).write_text(info.to_json())
    assert m.find_channel(conf) == info
    other = tmp_path / "other.json"
    assert m.find_channel({**conf, "HADAR_CHANNEL": str(other)}) is None
    other.write_text('{"version":1,"address":"http://x","public_key":"k"}')
    with pytest.raises(ChannelError, match=r"other\.json.*address"):
        m.find_channel({**conf, "HADAR_CHANNEL": str(other)})


def test_fingerprint_is_what_the_comment_grammar_takes() -> None:
    """The fingerprint fits the key= of the comment and does not contain the token."""
    from slurm_hadar import comment

    print_ = m.token_fingerprint(TOKEN)
    assert comment.parse(f"hadar:key={print_}").key == print_
    assert print_ not in TOKEN
