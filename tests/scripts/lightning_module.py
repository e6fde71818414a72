"""A LightningModule with a validation; the trainer gets one callback."""

import argparse
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: Any, batch_idx: Any) -> Any:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: Any) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    lightning.seed_everything(2, verbose=False)
    train = DataLoader(TensorDataset(torch.randn(400, 8), torch.randn(400, 1)), batch_size=16, shuffle=True)
    val = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=16)
    model = Regression()
    trainer = lightning.Trainer(
        max_epochs=14,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[slurm_hadar.LightningCallback()],
    )
    trainer.fit(model, train, val)
    torch.save(model.state_dict(), args.out)
