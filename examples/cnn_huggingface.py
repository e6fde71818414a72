"""The network of cnn.py, trained by Hugging Face's Trainer; one line makes it movable.

python examples/cnn_huggingface.py --steps 500
torchrun --nproc-per-node=2 examples/cnn_huggingface.py --steps 500
"""

import tempfile
from typing import Any

import _common
import cnn
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import slurm_hadar


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = cnn.network()

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.net(pictures), labels)}


class Losses(TrainerCallback):  # type: ignore[misc]  # the library is too large for mypy
    """Writes the losses that the Trainer logs."""

    def __init__(self, args: Any) -> None:
        self.args, self.loss = args, 0.0
        self.file: _common.Log | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.file = _common.Log(self.args.log, self.args.log_every, args.process_index, state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if "loss" in logs and self.file is not None:
            self.loss = logs["loss"]
            self.file.add(state.global_step, torch.tensor(self.loss))


def main() -> None:
    args = _common.arguments("CNN on generated images, by Hugging Face's Trainer", batch=16)
    torch.set_num_threads(1)
    data = [{"pictures": p, "labels": y} for p, y in cnn.images(args.seed)]
    losses = Losses(args)
    with tempfile.TemporaryDirectory() as output:
        options = TrainingArguments(
            output_dir=output,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            seed=args.seed,
            learning_rate=0.02,
            optim="sgd",
            dataloader_drop_last=True,
            logging_steps=args.log_every,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            ddp_find_unused_parameters=True,
        )
        torch.manual_seed(args.seed)
        model = Classifier()
        trainer = Trainer(model, options, train_dataset=data, callbacks=[losses, slurm_hadar.HuggingFaceCallback()])
        trainer.train()
        _common.finish(model, losses.loss, options.process_index)


if __name__ == "__main__":
    main()
