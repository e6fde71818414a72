"""Embeddings with a sparse optimizer, the rest with another, each with its schedule."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(16)
embedding = nn.EmbeddingBag(50, 16, sparse=True)
head = nn.Linear(16, 4)
optimizers = [torch.optim.SparseAdam(list(embedding.parameters()), lr=1e-2), torch.optim.AdamW(head.parameters())]
schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.995) for o in optimizers]
words = TensorDataset(torch.randint(0, 50, (448, 7)), torch.randint(0, 4, (448,)))
loader = DataLoader(words, batch_size=28, shuffle=True)

run = slurm_hadar.train(
    {"embedding": embedding, "head": head}, optimizers, total_steps=340, loader=loader, scheduler=schedulers
)
for tokens, labels in run:
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.functional.cross_entropy(head(embedding(tokens)), labels).backward()
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        optimizer.step()
        scheduler.step()

torch.save({"embedding": embedding.state_dict(), "head": head.state_dict()}, args.out)
