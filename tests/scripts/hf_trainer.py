"""Hugging Face's Trainer on a small BERT, with one callback."""

import argparse
import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import slurm_hadar


class Reviews(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(4)
        self.ids = torch.randint(0, 100, (256, 12), generator=generator)
        self.labels = torch.randint(0, 2, (256,), generator=generator)

    def __len__(self) -> Any:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.manual_seed(5)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=100,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )
    with tempfile.TemporaryDirectory() as output:
        options = TrainingArguments(
            output_dir=output,
            max_steps=300,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            seed=6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        Trainer(model, options, train_dataset=Reviews(), callbacks=[slurm_hadar.HuggingFaceCallback()]).train()
    torch.save(model.state_dict(), args.out)
