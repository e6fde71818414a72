"""A small convolutional network with batch normalisation learns to tell generated images apart.

python examples/cnn.py --steps 500
torchrun --nproc-per-node=2 examples/cnn.py --steps 500
"""

import _common
import torch
from torch import nn

import slurm_hadar

CLASSES, SIDE, IMAGES = 8, 12, 2048


def images(seed: int) -> torch.utils.data.TensorDataset:
    """Noisy pictures of CLASSES random patterns, with their labels."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=generator)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    noise = torch.randn(IMAGES, 1, SIDE, SIDE, generator=generator)
    return torch.utils.data.TensorDataset(patterns[labels] + 1.5 * noise, labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def main() -> None:
    args = _common.arguments("CNN on generated images", batch=16)
    rank, world = _common.start(args.seed)
    model = _common.share(network(), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    loader = _common.loader(images(args.seed), args.batch, args.seed, world)

    run = slurm_hadar.train(
        model, optimizer, total_steps=args.steps, loader=loader, scheduler=schedule, state={"loss": 0.0}
    )
    log = _common.Log(args.log, args.log_every, rank, run.step)
    device = _common.device()
    for batch in run:
        picture, label = (part.to(device) for part in batch)
        loss = nn.functional.cross_entropy(model(picture), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        run.state["loss"] = loss.item()
        log.add(run.step + 1, loss)
    _common.finish(model, run.state["loss"], rank)


if __name__ == "__main__":
    main()
