"""A batch script's surroundings: Slurm's commands as fakes on PATH that write down what they get, and hadar-srun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from slurm_hadar import messages

WRAPPER = Path(__file__).resolve().parents[3] / "wrappers" / "hadar-srun"
FAKE = """#!{python} -IS
import json, os, sys
call = {{"argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "env": dict(os.environ), "pid": os.getpid()}}
with open({record!r}, "a") as file:
    file.write(json.dumps(call) + "\\n")
fields = ("{restarts}", {submit!r}, "{tasks}", "{tres}", {work_dir!r}, {comment!r})
squeue = "".join(field + chr(31) for field in fields)
answer = {{"squeue": squeue, "scontrol": "NodeName=a NodeAddr=10.1.2.3 Port=1"}}.get(os.path.basename(sys.argv[0]))
if answer: print(answer)
sys.exit({code})
"""


class Fakes:
    """A directory for PATH with Slurm's commands in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.record = directory / "record"
        self.install()

    def install(
        self,
        comment: str = "hadar:model=lm,batch=5",
        code: int = 0,
        names: str = "srun squeue scontrol",
        submit: str = "2026-11-20T10:00:00",
        restarts: int = 0,
        tasks: int = 2,
        tres: str = "gres:gpu:4",
    ) -> None:
        for name in names.split():
            path = self.directory / name
            facts = {
                "record": str(self.record),
                "work_dir": str(self.directory.parent),
                "submit": submit,
                "restarts": restarts,
                "tasks": tasks,
                "tres": tres,
            }
            path.write_text(FAKE.format(python=sys.executable, comment=comment, code=code, **facts))
            path.chmod(0o755)

    def calls(self, name: str) -> list[dict[str, Any]]:
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [c for c in map(json.loads, lines) if c["argv"][0] == name]


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(WRAPPER), *arguments], env=env, capture_output=True, text=True, timeout=300)


def with_channel(env: dict[str, str]) -> None:
    path = Path(env["SLURM_CONF"]).parent / messages.CHANNEL_FILE
    path.write_text(messages.ChannelInfo(address="tcp://127.0.0.1:1", public_key="a" * 40).to_json())
