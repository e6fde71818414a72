"""What the workers of a training agree on is what rank 0 has decided, as it has decided it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = """
import json, os
import torch.distributed as dist
from dataclasses import astuple
from slurm_hadar.runtime.checkpoint.trigger import SaveDecision
from slurm_hadar.runtime.workers.gang import Gang
dist.init_process_group("gloo")
gang = Gang()
mine = SaveDecision(True, True, 0.1 + 0.2, False, 37) if gang.leads else SaveDecision()
for agreed in (gang.agree(mine), gang.apart().agree(mine)):
    print(json.dumps([astuple(agreed), [type(v).__name__ for v in astuple(agreed)]]))
gang.leave_together()
"""


def test_a_decision_arrives_whole(run_gang: Any, job_env: dict[str, str]) -> None:
    """Truth values, seconds and counts keep their values and types; also over connections of another thread's."""
    done = run_gang(SCRIPT, job_env, 2)

    assert [worker.returncode for worker in done] == [0, 0], [worker.stderr for worker in done]
    expected = [[True, True, 0.1 + 0.2, False, 37], ["bool", "bool", "float", "bool", "int"]]
    assert [json.loads(line) for worker in done for line in worker.stdout.splitlines()] == [expected] * 4


FORKING = """
import os, sys
import torch.distributed as dist
from slurm_hadar.runtime.workers.gang import Gang
dist.init_process_group("gloo")
gang = Gang()
gang.leave_together()
if gang.leads:
    child = os.fork()
    if child == 0:
        sys.exit()  # with all that is done at an end
    os.waitpid(child, 0)
print(gang.broadcast(7 if gang.leads else None))
"""


def test_a_process_that_a_worker_has_forked_does_not_leave_for_it(run_gang: Any, job_env: dict[str, str]) -> None:
    """As one of the script's own for what comes behind the training: it would wait for ever for the other workers."""
    done = run_gang(FORKING, job_env, 2)

    assert [(worker.returncode, worker.stdout) for worker in done] == [(0, "7\n")] * 2, [w.stderr for w in done]
