"""TRL's SFTTrainer with our meters, our log, the loss of each row and fp32 adapters."""

import json
import math
import time
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from trl import SFTTrainer
from trl.trainer.utils import global_then_local_main_first

from sft_exp import adapter, master, packing, reopen, rundir, saved
from sft_exp.meter import Meter, flops_per_token, size
from sft_exp.request import Request
from sft_exp.rowloss import KEY, RowCollator, RowLosses, per_row
from sft_exp.rundir import RunDir, finite
from sft_exp.schema import AdapterKind

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "epoch": "train/epoch",
    "mean_token_accuracy": "train/token_accuracy",
    "entropy": "train/entropy",
    "eval_loss": "eval/loss",
    "eval_mean_token_accuracy": "eval/token_accuracy",
    "eval_entropy": "eval/entropy",
    "eval_runtime": "eval/seconds",
    "eval_p_eos": "eval/p_eos",
    "test_loss": "test/loss",
    "test_p_eos": "test/p_eos",
    "test_runtime": "test/seconds",
}
"""The trainer's names -> the names in metrics.jsonl and MLflow."""


class Trainer(SFTTrainer):  # type: ignore[misc]
    """Counts tokens, writes `metrics.jsonl` on rank 0, keeps what is trained under an adapter in fp32."""

    def __init__(self, *args: Any, request: Request, run: RunDir, tokens_seen: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.request, self.run = request, run
        adapter.save_factors_only(self.model)
        self.data_collator: Any = RowCollator(self.data_collator)
        self.row_losses = RowLosses(run.rows)
        if request.experiment.adapter.kind is not AdapterKind.full and request.experiment.zero.stage == 0:
            # TRL turns trainable parts of quantised models into bf16, which swallows small updates and has no
            # gradient scaling in fp16. Under DeepSpeed the engine keeps fp32 copies of its own.
            adapter.keep_trainable_float32(self.model)
        self._eval_sums = torch.zeros(4, dtype=torch.float64)
        """Of the evaluation that is on: summed loss, trained tokens, summed P(end) and trained end tokens."""
        self.meter = Meter(self.args.device, tokens_seen)
        self.flops_per_token = flops_per_token(self.model)
        self.parameters = sum(map(size, self.model.parameters()))
        self.trainable = sum(size(p) for p in self.model.parameters() if p.requires_grad)

    def _prepare_dataset(
        self, dataset: Dataset, processing_class: Any, args: Any, packing_on: bool, *_: Any
    ) -> Dataset:
        """Pack and shuffle. TRL would also cut each row to the length that it has, and forget `index` in packing."""
        if isinstance(dataset, IterableDataset):
            return dataset
        with global_then_local_main_first():
            shuffled = dataset.shuffle(seed=args.seed) if args.shuffle_dataset else dataset
            if not packing_on:
                return shuffled
            packed = packing.pack(shuffled, args.max_length, args.packing_strategy, args.dataset_num_proc)
            return packed.shuffle(seed=args.seed) if args.shuffle_dataset else packed

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "index" not in self._signature_columns:
            self._signature_columns.append("index")

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """The optimizer, over fp32 copies of 16-bit weights where they are asked for."""
        new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if new and self.request.experiment.train.master_weights:
            master.Masters(optimizer)
        return optimizer

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Count, then train."""
        self.meter.count(inputs)
        loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate off the clock."""
        with self.meter.leave_out():
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        return metrics

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Take the loss of each row from the forward pass besides."""
        row_index = inputs.pop(KEY, None)
        outputs: list[Any] = []
        ends = inputs["labels"][:, 1:] == self.processing_class.eos_token_id

        def forward(**given: Any) -> Any:
            outputs.append(model(**given))
            return outputs[-1]

        loss = super().compute_loss(forward, inputs, *args, **kwargs)
        fused = outputs[-1]  # under label smoothing an ordinary pass, for the loss, comes before the fused one
        if self.model.training:
            if row_index is not None:
                self.row_losses.add(self.state.global_step + 1, row_index, fused, inputs.get("seq_idx"))
            return loss
        log_probs, p_end = fused.log_probs.float(), fused.log_probs.float().exp() * ends
        per_token = torch.stack([-log_probs, fused.label_mask.float(), p_end, ends.float()])
        rows = per_row(per_token, *self._conversations(inputs)).T
        # Rows that were repeated to give every rank as many batches are dropped here.
        self._eval_sums += self.accelerator.gather_for_metrics(rows).double().sum(0).cpu()
        return loss

    def _conversations(self, inputs: dict[str, Any]) -> tuple[int, torch.Tensor | None]:
        """How many conversations a batch holds, and of which each token of a flat row is; a pack counts as one."""
        if self.args.packing or "cu_seq_lens_q" not in inputs:
            return len(inputs["labels"]), None
        return len(inputs["cu_seq_lens_q"]) - 1, inputs["seq_idx"]

    def _save(self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Save, and read the final model again while the gathered weights are at hand."""
        # transformers takes each tensor out of the dictionary when it is written.
        super()._save(output_dir, dict(state_dict) if state_dict is not None else None)
        if self.args.should_save and output_dir == str(self.run.model):
            saved.require_whole(self.run.model, self.trainable)
            self.reopened = reopen.weights(self.run.model, reopen.expected(self.model, state_dict))

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.row_losses.write()  # a run that is resumed from here does not repeat these steps
        with self.meter.leave_out():
            super()._save_checkpoint(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add throughput, memory and scaling to a training log and append it to `metrics.jsonl`."""
        for key in logs.keys() & {"eval_loss", "test_loss"}:
            # The trainer averages the means of batches, which depends on how rows are batched; this is the mean over
            # tokens, the same for every batch size and number of ranks.
            loss, tokens, p_end, ends = self._eval_sums.tolist()
            logs[key] = loss / max(tokens, 1)
            if ends:
                logs[key.replace("loss", "p_eos")] = p_end / ends
            self._eval_sums = torch.zeros(4, dtype=torch.float64)
        super().log(logs, start_time)
        self.row_losses.write()
        row = {NAMES[key]: value for key, value in logs.items() if key in NAMES}
        if "train/loss" in row:
            row |= self._throughput() | self._scaling()
        elif "eval/loss" in row or "test/loss" in row:
            row.pop("train/epoch", None)
        else:
            return
        self.append(row)

    def append(self, row: dict[str, float]) -> None:
        """Add a row of this step to `metrics.jsonl`, on rank 0."""
        if not self.is_world_process_zero():
            return
        row = {"step": self.state.global_step, "time_ms": int(time.time() * 1000), **row}
        with self.run.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(row)) + "\n")

    def _throughput(self) -> dict[str, float]:
        counts, seconds = self.meter.read()
        steps = self.state.global_step - self._steps_read()
        per_second = counts["tokens"] / seconds
        row = {
            "train/total_steps": self.state.max_steps,
            "train/tokens_seen": self.meter.seen,
            "train/trained_tokens": counts["trained"],
            "perf/tokens_per_second": per_second,
            "perf/samples_per_second": counts["samples"] / seconds,
            "perf/step_seconds": seconds / max(steps, 1),
            "perf/padding_share": 1 - counts["tokens"] / max(counts["slots"], 1),
            "perf/peak_memory_gib": self.meter.peak_memory_gib(),
        }
        hw = self.request.experiment.hw
        if hw.peak_tflops and self.args.device.type == "cuda":
            row["perf/mfu"] = per_second * self.flops_per_token / (hw.peak_tflops * 1e12 * self.args.world_size)
        return row

    def _steps_read(self) -> int:
        """Step of the last log before this one."""
        before = [entry["step"] for entry in self.state.log_history[:-1] if "loss" in entry]
        return int(before[-1]) if before else self._initial_global_step

    def _scaling(self) -> dict[str, float]:
        """Loss scale and skipped steps of fp16 training."""
        if not self.args.fp16:
            return {}
        if self.is_deepspeed_enabled:
            engine = self.deepspeed
            return {"train/loss_scale": engine.optimizer.cur_scale, "train/skipped_steps": engine.skipped_steps}
        scaler = self.accelerator.scaler
        if scaler is None:
            return {}
        return {"train/loss_scale": scaler.get_scale(), "train/skipped_steps": self._skipped}

    _skipped = 0

    def count_skipped(self) -> None:
        """Called after each optimizer step: remember those that the scaler left out."""
        self._skipped += bool(self.accelerator.optimizer_step_was_skipped and not self.is_deepspeed_enabled)

    def summary(self) -> dict[str, Any]:
        """What `result.json` says, from all rows of `metrics.jsonl` (earlier parts of a resumed run included)."""
        rows = [json.loads(line) for line in self.run.metrics.read_text(encoding="utf-8").splitlines()]
        train = [row for row in rows if "train/loss" in row]
        evals = [float(row["eval/loss"]) for row in rows if "eval/loss" in row]
        # The first row holds start-up costs: compilation, allocation, the first batches of a cold loader.
        speeds = sorted(float(row["perf/tokens_per_second"]) for row in train[1:] or train)
        last = train[-1]
        return {
            "steps": self.state.global_step,
            "total_steps": self.state.max_steps,
            "loss_first": train[0]["train/loss"],
            "loss_last": last["train/loss"],
            "eval_loss": evals[-1] if evals else None,
            "test_loss": next((row["test/loss"] for row in reversed(rows) if "test/loss" in row), None),
            "eval_loss_best": min((x for x in evals if math.isfinite(x)), default=None),
            "grad_norm": last.get("train/grad_norm"),
            "tokens_per_second": speeds[len(speeds) // 2],
            "tokens_seen": last["train/tokens_seen"],
            "mfu": last.get("perf/mfu"),
            "peak_memory_gib": last["perf/peak_memory_gib"],
            "reserved_memory_gib": self.meter.peaks()[1] / 2**30 if self.args.device.type == "cuda" else None,
            "peak_memory_of": "card" if self.args.device.type == "cuda" else "process",
            "skipped_steps": last.get("train/skipped_steps"),
            "parameters": self.parameters,
            "trainable_parameters": self.trainable,
            "behaviour": rundir.read_json(self.run.behaviour)["headline"] if self.run.behaviour.exists() else None,
            "stopped_early": bool(self.state.global_step < self.state.max_steps),
        }
