"""Trainings by PyTorch Lightning and Hugging Face's Trainer, for test_callbacks.py, which calls them in processes of
their own. What they do stands in variables: PLAIN for one without a callback, EVERY so many steps a save, STOP at which
batch, or step, the run kills itself. They print JSON lines.
"""

import copy
import hashlib
import json
import logging
import os
import random
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import slurm_hadar

torch.set_num_threads(1)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()


def draws() -> list[float]:
    """What a script would draw next: the weights of another model, say."""
    return [torch.rand(1).item(), random.random()]


def options() -> dict[str, Any]:
    return {"save_every_steps": int(os.environ["EVERY"]), "keep": 1} if "EVERY" in os.environ else {}


def stop_at(number: int) -> None:
    time.sleep(float(os.environ.get("PACE", 0)))
    if number == int(os.environ.get("STOP", -1)):
        os.kill(os.getpid(), int(os.environ.get("SIGNAL", 9)))


def schedule(optimizer: Any) -> dict[str, Any]:
    if "STAGES" in os.environ:
        return {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": "val"}
    return {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9), "interval": "step"}


def lightning_model() -> Any:
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.lr = 0.01

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = (torch.cat(part) for part in zip(*batch, strict=True)) if "SEVERAL" in os.environ else batch
            loss = nn.functional.mse_loss(self.net(x + 0.01 * random.random()), y)
            number, loops = self.trainer.fit_loop.total_batch_idx, self.trainer.fit_loop
            if self.global_rank == 0:
                say(
                    batch=number,
                    index=batch_idx,
                    epoch=self.current_epoch,
                    loss=loss.item(),
                    step=self.global_step,
                    stepped=loops.epoch_loop._batches_that_stepped,
                )
            stop_at(number)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def on_validation_epoch_end(self) -> None:
            if self.global_rank == 0:
                say(validated=self.global_step, value=self.trainer.callback_metrics["val"].item())

        def on_train_epoch_end(self) -> None:
            if self.global_rank == 0:
                say(epoch_over=self.current_epoch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
            return {"optimizer": optimizer, "lr_scheduler": schedule(optimizer)}

    return Net()


def stages() -> Any:
    """What is set at the beginning of an epoch, for those that follow."""
    import lightning

    class Stages(lightning.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            later = trainer.current_epoch >= 2
            pl_module.net[0].requires_grad_(later)
            pl_module.net[1].train(later)
            trainer.accumulate_grad_batches = 2 if later else 1

    return Stages()


def average(base: type) -> Any:
    """An average of the weights, which only this callback has."""

    class Average(base):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self.ema = copy.deepcopy(model)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            for mean, weight in zip(self.ema.parameters(), model.parameters(), strict=True):
                mean.data.lerp_(weight.data, 0.1)

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.on_train_begin(None, None, None, pl_module.net)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            self.on_step_end(None, None, None, pl_module.net)

    return Average()


class Resuming(DataLoader[Any]):
    """Says where it is, and begins there when told so, as torchdata's."""

    given = begins = 0

    def __iter__(self) -> Any:
        self.given, self.begins = self.begins, 0
        for batch in list(super().__iter__())[self.given :]:
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begins = state["given"]


def searches() -> list[Any]:
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder

    return [BatchSizeFinder(init_val=3, max_trials=2, steps_per_trial=1), LearningRateFinder(num_training_steps=20)]


def loaders_made_anew(data: Any, training: dict[str, Any], validating: dict[str, Any]) -> Any:
    """Of another size in each pair of epochs."""
    import lightning

    class Data(lightning.LightningDataModule):
        batch_size = 8

        def train_dataloader(self) -> Any:
            assert self.trainer is not None
            return DataLoader(data, self.batch_size + 4 * (self.trainer.current_epoch // 2), shuffle=True, **training)

        def val_dataloader(self) -> Any:
            return DataLoader(data, 50, **validating)

    return Data()


def lightning_run() -> None:
    """Dropout, batch norm, a schedule, shuffling, augmentation by Python's random, validation amid the epochs."""
    import lightning

    warnings.filterwarnings("ignore")
    for name in ("lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.manual_seed(0)
    random.seed(0)
    data = TensorDataset(torch.randn(100, 6), torch.randn(100, 1))
    model = lightning_model()
    callbacks = [] if "PLAIN" in os.environ else [slurm_hadar.LightningCallback(**options())]
    callbacks += [stages()] if "STAGES" in os.environ else []
    callbacks += [average(lightning.Callback)] if "AVERAGE" in os.environ else []
    callbacks += searches() if "SEARCHES" in os.environ else []
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", 1)),
        logger=False,
        default_root_dir=os.environ["TMPDIR"],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        **{"max_epochs": 5, **json.loads(os.environ.get("TRAINER", "{}"))},
    )
    workers = {"num_workers": int(os.environ.get("WORKERS", 0)), "persistent_workers": "KEPT" in os.environ}
    validating = workers if "KEPT" in os.environ else {}
    if "ANEW" in os.environ:
        trainer.fit(model, datamodule=loaders_made_anew(data, workers, validating))
    else:
        kind: Any = Resuming if "RESUMING" in os.environ else DataLoader
        loader: Any = kind(data, batch_size=8, shuffle=True, **workers)
        if "STREAM" in os.environ:
            loader = DataLoader(Noisy([data[i] for i in range(len(data))]), batch_size=8)
        if "SEVERAL" in os.environ:  # which begin again in the midst of an epoch
            loader = [loader, *(DataLoader(data, 8, sampler=RandomSampler(range(n))) for n in (30, 8))]
        trainer.fit(model, loader, DataLoader(data, batch_size=50, **validating))
    if trainer.is_global_zero:
        ended = {"steps": trainer.global_step, "epoch": trainer.current_epoch, "rate": model.lr}
        say(weights=digest(model.net), drawn=draws(), **ended)


class Augmented(torch.utils.data.Dataset[Any]):
    """Draws random numbers for each sample."""

    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return {**self.data[index], "x": self.data[index]["x"] + 0.1 * torch.randn(6) + random.random()}


class Held(Augmented):
    """Draws them from a generator of its own."""

    def __init__(self, data: list[Any]) -> None:
        super().__init__(data)
        self.dice = random.Random(5)

    def __getitem__(self, index: int) -> Any:
        return {**self.data[index], "x": self.data[index]["x"] + self.dice.random()}


class Stream(torch.utils.data.IterableDataset[Any]):
    """Its length is not known."""

    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


class Noisy(Stream):
    """Draws random numbers for each sample, from generators that the model draws from."""

    def __iter__(self) -> Iterator[Any]:
        return ((x + 0.1 * torch.randn(6) + random.random(), y) for x, y in self.data)


def huggingface_run() -> None:
    """Dropout, batch norm, a schedule, shuffling, evaluation after each epoch."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.mse_loss(self.net(x), labels)}

    class Told(TrainerCallback):  # type: ignore[misc]  # the library is too large for mypy
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
            kept = {k: v for k, v in logs.items() if k in ("loss", "eval_loss", "learning_rate")}
            if kept and args.process_index == 0:
                say(batch=state.global_step, **kept)
            if "loss" in logs:
                stop_at(state.global_step)

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if "STAGES" in os.environ and state.global_step in (0, 12):
                model.net[0].requires_grad_(state.global_step == 12)

    torch.manual_seed(0)
    data: Any = [{"x": torch.randn(6), "labels": torch.randn(1)} for _ in range(100)]
    kinds = {"": data, "augmented": Augmented(data), "stream": Stream(data)}
    kinds["held"] = torch.utils.data.Subset(Held(data), range(96))
    model = Net()
    arguments = TrainingArguments(
        os.environ["TMPDIR"] + "/output",
        num_train_epochs=5,
        per_device_train_batch_size=8,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        learning_rate=0.01,
        remove_unused_columns=False,
        **{"save_strategy": "no", "eval_strategy": "epoch", **json.loads(os.environ.get("TRAINER", "{}"))},
    )
    callbacks = [] if "PLAIN" in os.environ else [slurm_hadar.HuggingFaceCallback(**options())]
    callbacks += [average(TrainerCallback)] if "AVERAGE" in os.environ else []
    trainer = Trainer(
        model,
        arguments,
        train_dataset=kinds[os.environ.get("DATA", "")],
        eval_dataset=data[:20],
        callbacks=[Told(), *callbacks],
    )
    trainer.train()
    if trainer.is_world_process_zero():
        say(weights=digest(model), drawn=draws(), steps=trainer.state.global_step)
