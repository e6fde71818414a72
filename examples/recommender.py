"""An autoencoder learns users' tastes from generated ratings, most of which are hidden from it.

python examples/recommender.py --steps 500
torchrun --nproc-per-node=2 examples/recommender.py --steps 500
"""

import _common
import torch
from torch import nn

import slurm_hadar

USERS, ITEMS, TASTES, SEEN = 4096, 400, 8, 0.1


def ratings(seed: int) -> torch.utils.data.TensorDataset:
    """Each user's ratings of all items, made from a few tastes, and which of them the user has given (1) or not (0)."""
    generator = torch.Generator().manual_seed(seed)
    users = torch.randn(USERS, TASTES, generator=generator)
    items = torch.randn(TASTES, ITEMS, generator=generator)
    given = (torch.rand(USERS, ITEMS, generator=generator) < SEEN).float()
    return torch.utils.data.TensorDataset(users @ items / TASTES**0.5, given)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(ITEMS, 96), nn.SELU(), nn.Dropout(0.1), nn.Linear(96, 32), nn.SELU(), nn.Linear(32, ITEMS)
    )


def main() -> None:
    args = _common.arguments("recommendation autoencoder", batch=64)
    rank, world = _common.start(args.seed)
    model = _common.share(network(), world)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    loader = _common.loader(ratings(args.seed), args.batch, args.seed, world)

    run = slurm_hadar.train(model, optimizer, total_steps=args.steps, loader=loader, state={"loss": 0.0})
    log = _common.Log(args.log, args.log_every, rank, run.step)
    device = _common.device()
    for batch in run:
        rating, given = (part.to(device) for part in batch)
        guess = model(rating * given)
        loss = (given * (guess - rating) ** 2).sum() / given.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.state["loss"] = loss.item()
        log.add(run.step + 1, loss)
    _common.finish(model, run.state["loss"], rank)


if __name__ == "__main__":
    main()
