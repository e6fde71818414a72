"""Four small trainings that are real: data, model, loss, and what they are worth on data they have not seen.

Images are scikit-learn's handwritten digits, text is that of ``examples/data``; the sentences to translate (numbers in
words, English to German) and the users' ratings are generated, the same for every seed. A seed decides the initial
weights, the order of the data and dropout.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

__all__ = ["CONVERGING", "DATA", "FAMILIES", "Family", "prepare"]

DATA = "HADARE_DATA"
TEXT = Path(__file__).resolve().parents[2] / "examples" / "data" / "text.txt"
Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Family:
    """One kind of training.

    ``model`` and ``batch`` name the row of the throughput table whose speeds it feels on a private cluster.
    ``loss(network, batch)`` is what is minimised; ``metric`` what counts, lower is better, over validation data.
    """

    name: str
    metric_name: str
    model: str
    batch: int
    own_batch: int
    data: Callable[[], tuple[Dataset[Any], Batch]]
    network: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Callable[[nn.Module, Batch], Tensor]
    metric: Callable[[nn.Module, Batch], Tensor]

    def loader(self, data: Dataset[Any]) -> DataLoader[Any]:
        return DataLoader(data, batch_size=self.own_batch, shuffle=True, drop_last=True)


# Images: a convolutional network with batch normalisation


def prepare(directory: Path) -> None:
    """Put what takes long to load where :data:`DATA` makes the trainings look: several start at once."""
    from sklearn.datasets import load_digits

    found = load_digits()
    torch.save((torch.tensor(found.images, dtype=torch.float32), torch.tensor(found.target)), directory / "digits.pt")


def _digits() -> tuple[Dataset[Any], Batch]:
    folder = os.environ.get(DATA)
    if not folder:
        raise SystemExit(f"{DATA} is not set; benchmarks.hadare.families.prepare(DIRECTORY) fills such a directory")
    images, labels = torch.load(Path(folder) / "digits.pt", weights_only=True)
    images = images.unsqueeze(1) / 8 - 1
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held = order[:1200], order[1200:]
    return TensorDataset(images[train], labels[train]), (images[held], labels[held])


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def _classify(network: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(network(batch[0]), batch[1], label_smoothing=0.05)


def _error_rate(network: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(network(batch[0]), batch[1])


# Translation: an encoder-decoder transformer

_ONES = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
_ONES_EN = [*_ONES.split(), "eighteen", "nineteen"]
_TENS_EN = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_EINS = "eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn"
_ONES_DE = [*_EINS.split(), "achtzehn", "neunzehn"]
_TENS_DE = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
_SOURCE, _TARGET = 12, 12


def _english(n: int) -> list[str]:
    if n >= 1000:
        return [*_english(n // 1000), "thousand", *(_english(n % 1000) if n % 1000 else [])]
    if n >= 100:
        return [_ONES_EN[n // 100 - 1], "hundred", *(["and", *_english(n % 100)] if n % 100 else [])]
    if n >= 20:
        return [_TENS_EN[n // 10 - 2], *([_ONES_EN[n % 10 - 1]] if n % 10 else [])]
    return [_ONES_EN[n - 1]]


def _german(n: int) -> list[str]:
    """Numbers in German, cut into their parts: units stand before tens."""
    if n >= 1000:
        thousands = ["ein"] if n // 1000 == 1 else _german(n // 1000)
        return [*thousands, "tausend", *(_german(n % 1000) if n % 1000 else [])]
    if n >= 100:
        hundreds = "ein" if n // 100 == 1 else _ONES_DE[n // 100 - 1]
        return [hundreds, "hundert", *(_german(n % 100) if n % 100 else [])]
    if n >= 20:
        unit = "ein" if n % 10 == 1 else _ONES_DE[n % 10 - 1]
        return [*([unit, "und"] if n % 10 else []), _TENS_DE[n // 10 - 2]]
    return [_ONES_DE[n - 1]]


def _vocabulary(words: list[list[str]]) -> dict[str, int]:
    """Codes from 3 on: 0 is padding, 1 the begin and 2 the end of a sentence."""
    return {w: i + 3 for i, w in enumerate(sorted({w for sentence in words for w in sentence}))}


def _sentences(most: int = 4500) -> tuple[Dataset[Any], Batch]:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randperm(99_999, generator=generator)[:5000] + 1
    english, german = [_english(int(n)) for n in numbers], [_german(int(n)) for n in numbers]
    source, target = _codes(english, _SOURCE), _codes(german, _TARGET)
    chosen = slice(500, 500 + most)
    return TensorDataset(source[chosen], target[chosen]), (source[:500], target[:500])


def _codes(sentences: list[list[str]], length: int) -> Tensor:
    vocabulary = _vocabulary(sentences)
    codes = torch.zeros(len(sentences), length, dtype=torch.long)
    for row, words in enumerate(sentences):
        line = [1, *(vocabulary[w] for w in words), 2]
        codes[row, : len(line)] = torch.tensor(line)
    return codes


class _Translator(nn.Module):
    """One layer each way; the decoder sees the target shifted by one."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(48, width, padding_idx=0), nn.Embedding(48, width, padding_idx=0)
        self.place = nn.Parameter(torch.randn(max(_SOURCE, _TARGET), width) * 0.1)
        self.body = nn.Transformer(width, 4, 1, 1, 64, dropout=0.1, batch_first=True)
        self.guess = nn.Linear(width, 48)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.body(
            self.source(source) + self.place[: source.shape[1]],
            self.target(target) + self.place[: target.shape[1]],
            tgt_mask=future,
            src_key_padding_mask=_padding(source),
            memory_key_padding_mask=_padding(source),
            tgt_is_causal=True,
        )
        guess: Tensor = self.guess(states)
        return guess


def _padding(codes: Tensor) -> Tensor:
    return torch.zeros(codes.shape).masked_fill(codes == 0, float("-inf"))


def _translate(network: nn.Module, batch: Batch) -> Tensor:
    source, target = batch
    scores = network(source, target[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)


# Language: a GRU, character by character


def _passages() -> tuple[Dataset[Any], Batch]:
    text, length = TEXT.read_text(), 24
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    codes = torch.tensor([index[c] for c in text])
    count = (len(codes) - 1) // length
    now, then = codes[: count * length].view(count, length), codes[1 : count * length + 1].view(count, length)
    held = torch.arange(count) % 8 == 0
    return TensorDataset(now[~held], then[~held]), (now[held], then[held])


class _Reader(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(128, 24), nn.GRU(24, width, batch_first=True)
        self.dropout, self.guess = nn.Dropout(0.2), nn.Linear(width, 128)

    def forward(self, codes: Tensor) -> Tensor:
        guess: Tensor = self.guess(self.dropout(self.gru(self.embed(codes))[0]))
        return guess


def _foretell(network: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(network(batch[0]).flatten(0, 1), batch[1].flatten())


# Recommendation: an autoencoder over ratings


def _ratings() -> tuple[Dataset[Any], Batch]:
    generator = torch.Generator().manual_seed(0)
    users = torch.randn(3000, 8, generator=generator)
    items = torch.randn(8, 200, generator=generator)
    rating = users @ items / 8**0.5 + 0.3 * torch.randn(3000, 200, generator=generator)
    given = (torch.rand(3000, 200, generator=generator) < 0.2).float()
    return TensorDataset(rating[500:], given[500:]), (rating[:500], given[:500])


def _taste() -> nn.Module:
    return nn.Sequential(
        nn.Linear(200, 96), nn.SELU(), nn.Dropout(0.2), nn.Linear(96, 32), nn.SELU(), nn.Linear(32, 200)
    )


def _guess_given(network: nn.Module, batch: Batch) -> Tensor:
    rating, given = batch
    loss: Tensor = (given * (network(rating * given) - rating) ** 2).sum() / given.sum()
    return loss


def _guess_hidden(network: nn.Module, batch: Batch) -> Tensor:
    rating, given = batch
    loss: Tensor = ((1 - given) * (network(rating * given) - rating) ** 2).sum() / (1 - given).sum()
    return loss


def _sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)


def _adam(lr: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda network: torch.optim.AdamW(network.parameters(), lr=lr)


FAMILIES = {
    f.name: f
    for f in (
        Family("cnn", "cross entropy", "resnet18", 128, 16, _digits, _cnn, _sgd, _classify, _error_rate),
        Family(
            "translation", "cross entropy", "transformer", 64, 16, _sentences, _Translator, _adam(2e-3), _translate,
            _translate,
        ),
        Family("lm", "cross entropy", "lm", 80, 8, _passages, _Reader, _adam(3e-3), _foretell, _foretell),
        Family(
            "recommender", "squared error", "recommendation", 2048, 32, _ratings, _taste, _adam(2e-3), _guess_given,
            _guess_hidden,
        ),
    )
}  # fmt: skip

#: The same, such that a single worker converges: it gains nothing any more from more steps. Few enough sentences that
#: some are translated wrongly in the end, and a network wide enough to learn all that the text has to teach.
CONVERGING = FAMILIES | {
    "translation": replace(FAMILIES["translation"], data=partial(_sentences, 300)),
    "lm": replace(FAMILIES["lm"], network=partial(_Reader, 128)),
}
