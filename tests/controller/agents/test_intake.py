"""What a job says costs that job at most: no round, no other job, never the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import Report, encode
from tests.profiles import examples

TOKEN = "a" * 64


def spoken(job: str, seq: int, **fields: Any) -> bytes:
    """A line of the job's spool file; ``fields`` may be what no report can hold."""
    report = Report(kind="report", job=job, restart=0, seq=seq, token=TOKEN, time=1.0, node="v100-1")
    return json.dumps({**json.loads(encode(report)), **fields}).encode() + b"\n"


def running(bench: Any, folder: Path, **fields: Any) -> str:
    """A job that runs, is vouched for, and has a spool file to fill."""
    job = bench.slurm.submit(1, "hadar:model=resnet18,batch=64", user="root", work_dir=str(folder), **fields)
    bench.slurm.vouch(job, TOKEN)
    bench.slurm.start(job, "v100-1")
    (folder / ".hadar" / job).mkdir(parents=True)
    return job


@pytest.mark.parametrize(
    "fields",
    [{"steps_per_s": 0}, {"steps_per_s": 5e-324}, {"steps_per_s": 1e12}, {"steps": 10**18, "steps_per_s": 1.0},
     {"save_s": 1e300}],
)  # fmt: skip
def test_figures_that_cannot_be_cost_the_report(bench: Any, tmp_path: Path, fields: dict[str, Any]) -> None:
    """Rounds go on, others of the same family too, and nothing of it is kept."""
    one = bench()
    job = running(one, tmp_path)
    spool = tmp_path / ".hadar" / job / "spool.jsonl"
    one.controller.run_round()
    for seq in range(1, 6):
        with spool.open("ab") as stream:
            stream.write(spoken(job, seq, **fields))
        one.controller.run_round()
    assert one.book.dropped == 5 and one.book.get(job) is None
    one.slurm.submit(1, "hadar:model=resnet18,batch=64")

    result = one.new_controller().run_round()

    assert result.plan is not None and not result.record.note
    speeds = [s.steps_per_s for j in result.seen.snapshot.jobs for s in j.speeds.values()]
    assert speeds and all(1e-3 < s < 1e6 for s in speeds)


@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rates=st.lists(st.floats(1e-9, 1e6) | st.sampled_from([1e-9, 1e6]), min_size=1, max_size=40))
def test_any_rate_that_is_taken_can_be_reckoned_with(bench: Any, rates: list[float]) -> None:
    """Averages of rates at the very bounds stay rates."""
    one = bench()
    job = one.slurm.submit(1, "hadar:model=resnet18,batch=64")
    one.slurm.vouch(job, TOKEN)
    one.slurm.start(job, "v100-1")
    one.controller.run_round()
    for seq, rate in enumerate(rates, 1):
        report = Report(
            kind="report", job=job, restart=0, seq=seq, token=TOKEN, time=1.0, node="v100-1", steps_per_s=rate
        )
        one.book.ingest(report)

    result = one.controller.run_round()

    assert result.plan is not None and not result.record.note


def test_a_channel_that_nobody_listens_to_ends_the_controller(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between two rounds, with one line, so that whoever supervises it starts it again."""
    one = bench()
    channel = Channel(one.book, tmp_path, "tcp://127.0.0.1:*", "127.0.0.1", tmp_path / "c.json", 8192)
    controller = one.new_controller(channel=channel)
    monkeypatch.setattr(channel, "_send_orders", lambda: 1 / 0)
    channel._wake.send(b"")  # noqa: SLF001 the channel's own thread is to do it now

    with pytest.raises(ChannelError, match="thread has ended"):
        controller.run()
    channel.close()
