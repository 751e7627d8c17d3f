"""What happens at set points of a training loop, besides training."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback

from sft_exp import rundir
from sft_exp.rundir import RunDir
from sft_exp.trainer import Trainer


class Clock(TrainerCallback):  # type: ignore[misc]
    """Starts meter and row log when the loop starts, and counts steps that the loss scaler skipped."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Variables of the environment can make accelerate leave DeepSpeed out in silence: believe the engine only.
        wanted, got = self.trainer.request.experiment.zero.stage, zero_stage(self.trainer.model_wrapped)
        assert wanted == got, f"zero={wanted} was asked for and the engine runs stage {got}"
        self.trainer.row_losses.begin(rank=args.process_index, ranks=args.world_size, step=state.global_step)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # the peak is that of training: drawing random weights needs its own
        self.trainer.meter.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_log = True  # the last step is always seen

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.trainer.count_skipped()


def zero_stage(engine: Any) -> int:
    """Stage of a DeepSpeed engine, 0 for a plain or DistributedDataParallel model."""
    return int(engine.zero_optimization_stage()) if hasattr(engine, "zero_optimization_stage") else 0


class Samples(TrainerCallback):  # type: ignore[misc]
    """Answers the same prompts before and after training, greedily, so that a person sees what was learned.

    All ranks generate: under ZeRO-3 a forward pass needs every one of them. It runs inside the loop's events, since
    the model is complete only between them.
    """

    def __init__(self, prompts: list[str], tokens: int, tokenizer: PreTrainedTokenizerBase, run: RunDir) -> None:
        self.prompts, self.tokens, self.tokenizer, self.run = prompts, tokens, tokenizer, run

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self.prompts and not self.run.samples.exists():
            self._write("before", self.answer(model), [{"prompt": prompt} for prompt in self.prompts])

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self.prompts:
            known = rundir.read_json(self.run.samples)["samples"] if self.run.samples.exists() else []
            before = known or [{"prompt": prompt} for prompt in self.prompts]
            self._write("after", self.answer(model), before)

    def _write(self, when: str, answers: list[str], samples: list[dict[str, str]]) -> None:
        merged = [{**sample, when: answer} for sample, answer in zip(samples, answers, strict=True)]
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
            if torch.distributed.get_rank() != 0:
                return
        rundir.write_json(self.run.samples, {"samples": merged})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def answer(self, model: Any) -> list[str]:
        """One answer for each prompt."""
        tokenizer, training = self.tokenizer, model.training
        texts = [self._render(prompt) for prompt in self.prompts]
        inputs = tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=not tokenizer.chat_template,
        ).to(model.device)
        model.eval()
        output = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=self.tokens,
            do_sample=False, use_cache=True, temperature=None, top_p=None, top_k=None,
        )  # fmt: skip
        model.train(training)
        new = output[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]

    def _render(self, prompt: str) -> str:
        if not self.tokenizer.chat_template:
            return prompt
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        return str(text)
