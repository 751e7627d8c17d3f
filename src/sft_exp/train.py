"""Training in one rank, in one screen: arguments, tokenizer, data, model, trainer, fit, save."""

from typing import Any

import torch
from transformers import EarlyStoppingCallback, PreTrainedTokenizerFast
from trl import SFTConfig

from sft_exp import adapter, final, layers, links, model, operations, pinning, rundir, splits, varlen
from sft_exp.arguments import arguments
from sft_exp.callbacks import Clock, Samples
from sft_exp.errors import ConfigError
from sft_exp.labels import chat_end_token
from sft_exp.metrics import read_rows
from sft_exp.profiling import Profile
from sft_exp.request import Request
from sft_exp.rundir import RunDir
from sft_exp.schema import TRAINING_TEMPLATE, Device, Dtype, Experiment, Precision
from sft_exp.tokenizer import load_tokenizer, new_tokens
from sft_exp.worker import wait_for_data


def train(request: Request, run: RunDir) -> None:
    """Train as the run folder says and leave the final model and `result.json` in it."""
    experiment = request.experiment
    require_device(experiment)
    operations.load(experiment, run)  # compiles, if it must, while the data is prepared
    wait_for_data(run)
    data = rundir.read_json(run.data)
    args = arguments(request, run, evaluates=data["eval_rows"] > 0)
    if experiment.zero.stage > 0:
        start_deepspeed(experiment, run)
    tokenizer = load_tokenizer(experiment.model)
    # The end of a turn is the one that was trained, which the template of inference need not write (GLM's does not).
    training = experiment.model.chat_template == TRAINING_TEMPLATE
    trains_by = load_tokenizer(experiment.model, preparing=True) if training else tokenizer
    links.require(args.device)
    rows = splits.load(experiment, run, data, trains_by, records=args.process_index == 0)
    network = load_network(experiment, tokenizer, chat_end_token(trains_by))
    added = final.Added.watch(experiment.model, network, tokenizer)
    trainer = build(request, run, args, network, tokenizer, rows, added.ids if added.trained else [])
    checkpoint = run.newest_checkpoint() if experiment.resume or run.checkpoints.exists() else None
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if rows.held_out is not None and not evaluated_last(trainer):
        trainer.evaluate()
    if rows.test is not None:
        trainer.evaluate(rows.test, metric_key_prefix="test")
    final.save(trainer, run, data, added)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def require_device(experiment: Experiment) -> None:
    """Refuse where torch would train on the CPU in silence though a GPU was asked for."""
    if experiment.hw.device is not Device.cuda:
        return
    if not torch.cuda.is_available():
        raise ConfigError(
            f"hw={experiment.hw.name} needs a GPU and torch {torch.__version__} cannot use one here: "
            f"check the driver with nvidia-smi, or use hw.device=cpu."
        )
    major, minor = torch.cuda.get_device_capability()
    built = [int(arch.partition("_")[2].rstrip("af")) for arch in torch.cuda.get_arch_list()]
    if built and not any(arch // 10 == major and arch <= major * 10 + minor for arch in built):
        raise ConfigError(
            f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name()} (sm_{major}{minor}): "
            f"install a build for an older CUDA, such as pip install torch --index-url .../whl/cu126."
        )


def start_deepspeed(experiment: Experiment, run: RunDir) -> None:
    """Start the process group as DeepSpeed wants it; left to itself it looks for MPI and fails in one process."""
    import deepspeed

    if experiment.zero.pin_memory:
        pinning.guard(deepspeed.get_accelerator(), lambda text: operations.tell(run, text))
    backend = "gloo" if experiment.hw.device is Device.cpu else "nccl"
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False)


def load_network(experiment: Experiment, tokenizer: PreTrainedTokenizerFast, end: int | None) -> Any:
    """The model with room for its tokens, the right end token and the chosen storage type."""
    train, settings = experiment.train, experiment.model
    dtype = {Dtype.auto: "float32"}.get(settings.dtype, settings.dtype.value)
    compute = {Precision.bf16: "bfloat16", Precision.fp16: "float16"}.get(train.precision, "float32")
    varlen.register()
    network = model.load_model(
        settings, dtype=dtype, attention=settings.attention.value, seed=train.seed,
        quantization=adapter.quantization(experiment.adapter, compute),
    )  # fmt: skip
    adapter.keep_unpacked(network)
    model.add_token_rows(network, tokenizer, new_tokens(settings), settings.token_descriptions)
    if end is not None:
        model.align_end_token(network, tokenizer, end)
    return network


def build(
    request: Request,
    run: RunDir,
    args: SFTConfig,
    network: Any,
    tokenizer: PreTrainedTokenizerFast,
    rows: splits.Splits,
    token_ids: list[int],
) -> Any:
    """The trainer with its callbacks; an adapter trains the rows of `token_ids` besides."""
    from sft_exp.probes.callback import Probes
    from sft_exp.probes.session import Session
    from sft_exp.trainer import Trainer

    experiment, train = request.experiment, request.experiment.train
    earlier = [row for row in read_rows(run.metrics)[0] if "train/tokens_seen" in row]
    trainer = Trainer(
        model=network, args=args, train_dataset=rows.train, eval_dataset=rows.held_out, processing_class=tokenizer,
        peft_config=adapter.lora_config(experiment.adapter, network, token_ids),
        request=request, run=run, tokens_seen=int(earlier[-1]["train/tokens_seen"]) if earlier else 0,
    )  # fmt: skip
    if train.compile:
        layers.compile_layers(trainer.model)
    trainer.add_callback(Samples(train.sample_prompts, train.sample_tokens, tokenizer, run))
    if experiment.eval.probes:
        trainer.add_callback(Probes(experiment, run, Session(experiment, run, trainer, rows)))
    if train.profile:
        trainer.add_callback(Profile(run))
    trainer.add_callback(Clock(trainer))  # last, so that the answers before training are not on the clock
    if train.early_stopping is not None:
        trainer.add_callback(EarlyStoppingCallback(train.early_stopping))
    return trainer


def evaluated_last(trainer: Any) -> bool:
    """Whether the last step was evaluated already."""
    return any(
        "eval_loss" in entry and entry["step"] == trainer.state.global_step for entry in trainer.state.log_history
    )
