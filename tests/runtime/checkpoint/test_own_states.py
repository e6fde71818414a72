"""Workers that are no copies of each other: each goes on from what it had itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.runtime.checkpoint.states.by_worker import likeness, own_names, sums_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAINING = """
import json, os, signal, sys, torch, slurm_hadar
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, what, stop, restart = dist.get_rank(), sys.argv[1], int(sys.argv[2]), int(os.environ["SLURM_RESTART_COUNT"])
torch.manual_seed(100 * restart)
net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
also = {}
if what == "stage": torch.manual_seed(rank + 100 * restart); net = nn.Linear(3, 3)
if what == "unlike stage": net = nn.ModuleDict({f"layer{rank}": nn.Linear(3, 3)})
if what == "noise": also = {"noise": torch.Generator().manual_seed(rank + 100 * restart)}
if what == "mesh":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(rank // 2 + 100 * restart); net = nn.Linear(3, 4)
    fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "shard"))["shard"])
wrap, own, model = nn.parallel.DistributedDataParallel, {}, net
if what == "copies of a stage":
    torch.manual_seed(rank // 2 + 100 * restart); net = nn.Linear(3, 3)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]; own = {"process_group": groups[rank // 2]}
if "apart" in what: net = nn.Linear(3, 3)  # DDP sends buffers round in its first pass, no_sync() or not
if what == "a table beside":
    net.table = nn.Embedding(4, 3); nn.init.constant_(net.table.weight, 0.1 * rank + restart)
    net.forward = lambda x: net[2](net[1](net[0](x + net.table(torch.zeros(4, dtype=torch.long)))))
    wrap._set_params_and_buffers_to_ignore_for_model(net, ["table.weight"])
if "cop" in what or "DDP" in what or "beside" in what: model = wrap(net, **own)
if "list" in what and rank == 0: also = {"list": [], "best": 0.0}
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
run = slurm_hadar.train(model, optimizer, total_steps=9, also=also, save_every_steps=1, async_save=what == "stage")
for step in run:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(50 * rank + step))
    if "noise" in also: x = x + torch.randn(4, 3, generator=also["noise"])
    optimizer.zero_grad()
    one = model if what != "unlike stage" else net[f"layer{rank}"]
    from contextlib import nullcontext
    with model.no_sync() if "apart" in what else nullcontext(): one(x).square().sum().backward()
    optimizer.step()
    if "apart" in what and step % 4 == 3: [dist.all_reduce(p.data, op=dist.ReduceOp.AVG) for p in net.parameters()]
    if step == stop: dist.barrier(); os._exit(9)
whole = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
print(json.dumps([whole(t).tolist() for t in net.state_dict().values()]))
dist.barrier()
"""


@pytest.mark.parametrize(
    ("what", "world"),
    [("stage", 2), ("unlike stage", 2), ("buffers", 2), ("noise", 2), ("mesh", 4), ("copies of a stage", 4),
     ("a table beside", 2), ("DDP, apart for four steps", 2), ("list of the first one's, DDP", 2)],
)  # fmt: skip
def test_each_worker_goes_on_from_its_own(run_gang: Any, job_env: dict[str, str], what: str, world: int) -> None:
    """Stages of a pipeline, of the same names or not, sharded or in copies; statistics of each one's data; noise; what
    ``DistributedDataParallel`` is not to keep alike."""
    undisturbed = _ended(run_gang, {**job_env, "HADAR_JOB_DIR": f"{job_env['HADAR_JOB_DIR']}-other"}, what, world)
    run_gang(TRAINING, {**job_env, "SLURM_RESTART_COUNT": "0"}, world, what, "5")
    moved = _ended(run_gang, job_env, what, world, restart=1)

    assert moved == undisturbed and (moved[0] != moved[-1] or what.startswith("list"))


def test_copies_are_not_saved_by_each(run_gang: Any, job_env: dict[str, str]) -> None:
    assert "own.pt" not in _files(run_gang, job_env, "copies")
    assert "own.pt" in _files(run_gang, job_env, "stage")


def test_rounding_of_another_gpu_is_not_a_state_of_its_own() -> None:
    """Where copies are kept alike; what is of another kind is one all the same."""
    form = {"model": {"": {"w": {"\0tensor": "model.w"}, "b": {"\0tensor": "model.b"}}}}
    here = {"model.w": torch.ones(3), "model.b": torch.ones(2)}
    there = {"model.w": torch.ones(3) + 1e-6, "model.b": torch.ones(2) + 1e-6}
    leader, other = likeness(form, here, ()), likeness(form, there, ())
    alike = {"model.w"}
    assert own_names(other, leader, 1, alike).keys() == {"model.w", "model.b"}
    assert own_names(replace(other, gpu="K80"), replace(leader, gpu="V100"), 1, alike).keys() == {"model.b"}
    longer = likeness(form, {**there, "model.w": torch.ones(4)}, ())
    assert own_names(replace(longer, gpu="K80"), replace(leader, gpu="V100"), 1, alike).keys() == {"model.w", "model.b"}
    assert likeness(form, {**here, "model.b": torch.zeros(2)}, {"model.b"}).tensors["model.b"] == (
        (2,),
        "torch.float32",
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int8, torch.complex64])
def test_what_differs_in_signs_alone_differs(dtype: Any) -> None:
    """As mirrored noise does; lazily conjugate or negated ones are what they stand for."""
    for seed in range(50):
        signs = torch.randint(0, 2, (37,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
        some = (torch.arange(1, 38) * signs).to(dtype)
        sums = sums_of({"some": some, "same": some.clone(), "negated": -some, "other": some.flip(0)[1:].clone()})
        assert sums["some"] == sums["same"] != sums["negated"] and len(set(sums.values())) == 3
    lazy = torch.ones(4, dtype=torch.complex64) * 1j
    assert sums_of({"a": lazy.conj()}) == sums_of({"a": lazy.conj().resolve_conj().clone()}) != sums_of({"a": lazy})


def test_what_no_checkpoint_writes_as_a_tensor_is_compared_by_content() -> None:
    """Not by its place in memory: an empty tensor would make all workers' states their own."""
    made = [likeness({"e": torch.empty(0), "s": torch.eye(3).to_sparse()}, {}, ()) for _ in range(2)]
    assert made[0] == made[1] != likeness({"e": torch.empty(0), "s": (2 * torch.eye(3)).to_sparse()}, {}, ())


def test_other_workers_are_told_whose_states_they_have(run_gang: Any, job_env: dict[str, str]) -> None:
    run_gang(TRAINING, {**job_env, "SLURM_RESTART_COUNT": "0"}, 2, "stage", "5")
    done = run_gang(TRAINING, {**job_env, "SLURM_RESTART_COUNT": "1"}, 1, "stage", "99")

    assert done[0].returncode == 0
    assert "2 of 2 workers had states of their own" in done[0].stderr and "1 go on" in done[0].stderr


def _ended(run_gang: Any, env: dict[str, str], what: str, world: int, restart: int = 0) -> list[Any]:
    done = run_gang(TRAINING, {**env, "SLURM_RESTART_COUNT": str(restart)}, world, what, "99")
    assert [one.returncode for one in done] == [0] * world, [one.stderr[-2000:] for one in done]
    return [json.loads(one.stdout) for one in done]


def _files(run_gang: Any, env: dict[str, str], what: str) -> set[str]:
    from pathlib import Path

    folder = Path(env["HADAR_JOB_DIR"]) / what
    _ended(run_gang, {**env, "HADAR_JOB_DIR": str(folder)}, what, 2)
    return {file.name for file in folder.rglob("*")}
