"""Learning rate and momentum of cnn.py's network, trained by PyTorch Lightning: an objective for `hadar tune`.

hadar tune run examples/tune_lightning.py:objective --trials 9 --algorithm sha
"""

import sys
from pathlib import Path
from typing import Any

import lightning
import optuna
import torch

import slurm_hadar

sys.path.insert(0, str(Path(__file__).parent))
import cnn

EVERY, STEPS = 20, 240


class Classifier(lightning.LightningModule):
    def __init__(self, trial: Any) -> None:
        super().__init__()
        self.net, self.trial, self.loss = cnn.network(), trial, 0.0
        self.lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
        self.momentum = trial.suggest_float("momentum", 0.0, 0.95)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        pictures, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(pictures), labels)
        self.loss = loss.item()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step % EVERY == 0:
            self.trial.report(self.loss, self.global_step // EVERY)
            if self.trial.should_prune():
                raise optuna.TrialPruned

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def objective(trial: Any) -> float:
    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    model = Classifier(trial)
    loader = torch.utils.data.DataLoader(cnn.images(0), batch_size=16, shuffle=True, drop_last=True)
    trainer = lightning.Trainer(
        max_steps=STEPS, max_epochs=-1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[slurm_hadar.LightningCallback()],
    )  # fmt: skip
    print("begins", flush=True)
    trainer.fit(model, loader)
    print("ends at step", trainer.global_step, flush=True)
    return model.loss
