"""The network of cnn.py, trained by PyTorch Lightning; one line makes it movable.

python examples/cnn_lightning.py --steps 500
torchrun --nproc-per-node=2 examples/cnn_lightning.py --steps 500
"""

import os
from typing import Any

import _common
import cnn
import lightning
import torch

import slurm_hadar


class Classifier(lightning.LightningModule):
    def __init__(self, args: Any) -> None:
        super().__init__()
        self.net, self.args, self.loss = cnn.network(), args, 0.0
        self.log_file: _common.Log | None = None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        pictures, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(pictures), labels)
        self.loss = loss.item()
        if self.log_file is None:
            self.log_file = _common.Log(self.args.log, self.args.log_every, self.global_rank, self.global_step)
        self.log_file.add(self.global_step + 1, loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.args.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    args = _common.arguments("CNN on generated images, by Lightning", batch=16)
    torch.set_num_threads(1)
    lightning.seed_everything(args.seed, verbose=False)
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # torchrun's
    loader = torch.utils.data.DataLoader(cnn.images(args.seed), batch_size=args.batch, shuffle=True, drop_last=True)
    model = Classifier(args)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        max_epochs=-1,
        accelerator="cpu",
        devices=workers,
        num_nodes=int(os.environ.get("WORLD_SIZE", workers)) // workers,
        strategy="ddp_find_unused_parameters_true" if workers > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[slurm_hadar.LightningCallback()],
    )
    trainer.fit(model, loader)
    _common.finish(model.net, model.loss, trainer.global_rank)


if __name__ == "__main__":
    main()
