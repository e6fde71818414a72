"""A recurrent network learns to go on with a text, character by character.

python examples/charlm.py --steps 500
torchrun --nproc-per-node=2 examples/charlm.py --steps 500
"""

from pathlib import Path

import _common
import torch
from torch import nn

import slurm_hadar

TEXT = Path(__file__).parent / "data" / "text.txt"
LENGTH = 24


class Passages(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Passages of LENGTH characters and, shifted by one, the characters to be foretold."""

    def __init__(self, text: str) -> None:
        self.characters = sorted(set(text))
        index = {c: i for i, c in enumerate(self.characters)}
        self._codes = torch.tensor([index[c] for c in text])

    def __len__(self) -> int:
        return (len(self._codes) - 1) // LENGTH

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = i * LENGTH
        return self._codes[start : start + LENGTH], self._codes[start + 1 : start + LENGTH + 1]


class Reader(nn.Module):
    """Embedding, one GRU, and a guess at the next character."""

    def __init__(self, characters: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, 24)
        self.gru = nn.GRU(24, width, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.guess = nn.Linear(width, characters)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.embed(codes))
        guess: torch.Tensor = self.guess(self.dropout(states))
        return guess


def main() -> None:
    args = _common.arguments("character language model", batch=8)
    rank, world = _common.start(args.seed)
    passages = Passages(TEXT.read_text())
    model = _common.share(Reader(len(passages.characters)), world)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    loader = _common.loader(passages, args.batch, args.seed, world)

    run = slurm_hadar.train(model, optimizer, total_steps=args.steps, loader=loader, state={"loss": 0.0})
    log = _common.Log(args.log, args.log_every, rank, run.step)
    device = _common.device()
    for batch in run:
        codes, following = (part.to(device) for part in batch)
        loss = nn.functional.cross_entropy(model(codes).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.state["loss"] = loss.item()
        log.add(run.step + 1, loss)
    _common.finish(model, run.state["loss"], rank)


if __name__ == "__main__":
    main()
