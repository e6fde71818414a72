"""A stream of samples (IterableDataset), split over two loader workers."""

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import slurm_hadar


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        generator = torch.Generator().manual_seed(8)
        for number in range(3200):
            sample = torch.randn(6, generator=generator)
            if number % info.num_workers == info.id:
                yield sample, sample.sum().reshape(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Stream(), batch_size=16, num_workers=2)
    for inputs, targets in slurm_hadar.train(model, optimizer, total_steps=320, loader=loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    torch.save(model.state_dict(), args.out)
