"""Three small models to serve, with untrained weights: their run times are what matters here.

    hadar serve run examples/serving/models.py:build --slo 100ms
    hadar serve load --model texts --trace poisson:rate=30,seconds=20 --mix tweet=80,article=20

``texts`` is a transformer whose time goes with the length of the longest text of a batch; ``exits`` a network that
stops at the first classifier that is sure; ``static`` one that always takes the same. On a GPU where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

WORDS, CLASSES = 1000, 10
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = {"tweet": (8, 32), "article": (300, 400)}


class Texts:
    """Texts as numbers of words, of any length up to 512."""

    name = "texts"
    inputs = (("words", "INT64", [-1]),)
    outputs = (("scores", "FP32", [CLASSES]),)

    def __init__(self) -> None:
        width = 192
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self._embed = nn.Embedding(WORDS, width).to(DEVICE)
        self._encode = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval().to(DEVICE)
        self._score = nn.Linear(width, CLASSES).to(DEVICE)

    @torch.inference_mode()
    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        texts = [torch.from_numpy(np.array(r["words"])).clamp(0, WORDS - 1) for r in requests]
        if not all(0 < len(text) <= 512 for text in texts):
            raise ValueError("a text has from 1 to 512 words")
        lengths = torch.tensor([len(text) for text in texts], device=DEVICE)
        words = nn.utils.rnn.pad_sequence(texts, batch_first=True).to(DEVICE)
        padding = torch.arange(words.shape[1], device=DEVICE)[None, :] >= lengths[:, None]
        encoded = self._encode(self._embed(words), src_key_padding_mask=padding)
        mean = encoded.masked_fill(padding[..., None], 0.0).sum(1) / lengths[:, None]
        return [{"scores": row} for row in self._score(mean).cpu().numpy()]

    def examples(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        dice = np.random.default_rng(0)
        return {
            name: [{"words": dice.integers(0, WORDS, dice.integers(*lengths))} for _ in range(8)]
            for name, lengths in LENGTHS.items()
        }


class _Stage(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        for _ in range(3):
            blocks += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.body(images)
        return found, self.head(found.mean((2, 3)))


class Exits:
    """Images; who is sure of all of a batch's leaves early."""

    name = "exits"
    inputs = (("image", "FP32", [3, 32, 32]),)
    outputs = (("scores", "FP32", [CLASSES]),)

    def __init__(self) -> None:
        self._stages = nn.ModuleList([_Stage(3, 32), _Stage(32, 48), _Stage(48, 64)]).eval().to(DEVICE)

    @torch.inference_mode()
    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        images = torch.from_numpy(np.stack([r["image"] for r in requests])).to(DEVICE)
        scores = torch.zeros(len(requests), CLASSES, device=DEVICE)
        waiting = torch.arange(len(requests), device=DEVICE)
        for place, stage in enumerate(self._stages):
            images, found = stage(images)
            scores[waiting] = found
            # sure: the scores lie far apart, as those of images with much contrast do
            unsure = found.std(1) < (0.5 if place < len(self._stages) - 1 else 0.0)
            images, waiting = images[unsure], waiting[unsure]
            if not len(waiting):
                break
        return [{"scores": row} for row in scores.cpu().numpy()]

    def examples(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        dice = np.random.default_rng(0)
        return {
            name: [{"image": (contrast * dice.normal(size=(3, 32, 32))).astype(np.float32)} for _ in range(8)]
            for name, contrast in (("clear", 60.0), ("blurred", 0.5))
        }


class Static:
    """Images, all through the whole of one stage."""

    name = "static"
    inputs = Exits.inputs
    outputs = Exits.outputs

    def __init__(self) -> None:
        self._stage = _Stage(3, 48).eval().to(DEVICE)

    @torch.inference_mode()
    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        images = torch.from_numpy(np.stack([r["image"] for r in requests])).to(DEVICE)
        return [{"scores": row} for row in self._stage(images)[1].cpu().numpy()]

    def examples(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        dice = np.random.default_rng(0)
        return {"image": [{"image": dice.normal(size=(3, 32, 32)).astype(np.float32)} for _ in range(4)]}


def build() -> list[Any]:
    torch.manual_seed(0)
    return [Texts(), Exits(), Static()]


def texts() -> Texts:
    torch.manual_seed(0)
    return Texts()


def exits() -> Exits:
    torch.manual_seed(0)
    return Exits()
