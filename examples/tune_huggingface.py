"""Learning rate and decay of cnn.py's network, trained by Hugging Face's Trainer: an objective for `hadar tune`.

hadar tune run examples/tune_huggingface.py:objective --trials 9 --algorithm sha
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import optuna
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import slurm_hadar

sys.path.insert(0, str(Path(__file__).parent))
import cnn

EVERY, STEPS = 20, 240


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = cnn.network()

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.net(pictures), labels)}


class Reports(TrainerCallback):  # type: ignore[misc]  # the library is too large for mypy
    """Tells the study each loss that the Trainer logs."""

    def __init__(self, trial: Any) -> None:
        self.trial, self.loss = trial, float("nan")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if "loss" in logs:
            self.loss = logs["loss"]
            self.trial.report(self.loss, state.global_step // EVERY)
            if self.trial.should_prune():
                raise optuna.TrialPruned


def objective(trial: Any) -> float:
    torch.set_num_threads(1)
    lr, decay = trial.suggest_float("lr", 1e-4, 1.0, log=True), trial.suggest_float("decay", 1e-6, 1e-2, log=True)
    data = [{"pictures": p, "labels": y} for p, y in cnn.images(0)]
    reports = Reports(trial)
    with tempfile.TemporaryDirectory() as output:
        options = TrainingArguments(
            output_dir=output, max_steps=STEPS, per_device_train_batch_size=16, learning_rate=lr, weight_decay=decay,
            optim="sgd", dataloader_drop_last=True, logging_steps=EVERY, save_strategy="no", report_to=[],
            disable_tqdm=True, remove_unused_columns=False,
        )  # fmt: skip
        torch.manual_seed(0)
        trainer = Trainer(
            Classifier(), options, train_dataset=data, callbacks=[reports, slurm_hadar.HuggingFaceCallback()]
        )
        print("begins", flush=True)
        trainer.train()
        print("ends at step", trainer.state.global_step, flush=True)
    return reports.loss
