"""What a trial's process is told, and what it tells."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hadar.runtime.inject._hadar_progress import MAGIC, MAGIC_VALUE, Page
from slurm_hadar.tuning.executor.channel import Channel
from slurm_hadar.tuning.trial.wire import Spec
from slurm_hadar.tuning.trial.worker import _plain, prepare
from tests.tuning.conftest import DEADLINE_S


@pytest.mark.parametrize("world", [1, 2])
def test_one_process_alone_is_not_distributed(world: int, tmp_path: Path) -> None:
    """Libraries that see a rank look for the others."""
    spec = Spec("", "", "", 3, 1, "study.py", "objective", str(tmp_path), (1,) * world, "v100", world, 0)
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6", "RANK": "7", "SLURM_JOB_ID": "1"}
    prepare(environ, spec, 0, tmp_path)
    assert environ["CUDA_VISIBLE_DEVICES"].startswith("5") and "SLURM_JOB_ID" not in environ
    assert {name: environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == (
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        if world == 2
        else dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    )


def test_a_page_that_is_just_being_made_ends_no_beat(tmp_path: Path) -> None:
    """Its file is empty for a moment; who beats no more hears nothing of being told to save, either."""
    channel = Channel(everywhere=False)
    spec = Spec(channel.address, channel.server_key, channel.token, 0, 0, "study.py", "objective", "", (0,), "cpu")
    script = (
        "import sys, pathlib\n"
        "from slurm_hadar.tuning.trial import worker\n"
        "worker._beat(worker.Spec.read(sys.argv[1]), 0, pathlib.Path(sys.argv[2]))\n"
    )
    pages = tmp_path / "pages"
    pages.mkdir()
    process = subprocess.Popen([sys.executable, "-c", script, spec.text(), str(pages)])
    file = pages / f"{process.pid}.map"
    file.touch()
    try:
        deadline_s, empty = time.monotonic() + DEADLINE_S, 0
        while True:
            assert process.poll() is None and time.monotonic() < deadline_s
            channel.socket.poll(1000)
            beats = [message.said for message in channel.messages()]
            if any("steps" in said for said in beats):
                break
            if (empty := empty + len(beats)) >= 3 and file.exists() and not file.stat().st_size:
                file.unlink()
                Page(file, create=True).words[MAGIC] = MAGIC_VALUE
    finally:
        process.kill()
        process.wait()
        channel.close()


def test_what_cannot_be_shown_is_told_all_the_same() -> None:
    """What an objective returns may be anything; if that ended its process, the trial would be run three times."""

    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("it is on another device")

        def __repr__(self) -> str:
            raise RuntimeError("it is on another device")

    assert _plain(Odd()) == "a Odd that cannot be shown"
    assert _plain({"loss": 10**5000}) == {"loss": "a int that cannot be shown"}
    assert _plain([1, 2]) == "[1, 2]"
