"""What runs but deserves a word."""

from collections.abc import Iterator

from sft_exp.schema import AdapterKind, Attention, Dtype, Experiment, Precision


def warnings(experiment: Experiment) -> Iterator[str]:
    """One sentence for each choice that costs speed or quality without being wrong."""
    stage, processes = experiment.zero, experiment.hw.ranks
    if stage.stage > 0 and processes == 1 and not stage.offload_optimizer:
        yield f"zero={stage.stage} has nothing to shard in one process: zero=0 does the same without DeepSpeed, faster."
    if stage.stage > 0 and experiment.adapter.kind is not AdapterKind.full and stage.stage < 3:
        yield (
            f"zero={stage.stage} shards optimizer and gradients, and adapter={experiment.adapter.kind.value} has "
            "little of either."
        )
    full16 = experiment.model.dtype in (Dtype.bfloat16, Dtype.float16) and experiment.adapter.kind is AdapterKind.full
    if full16 and stage.stage == 0 and not experiment.train.master_weights:
        yield (
            f"model.dtype={experiment.model.dtype.value} with adapter=full loses small updates: "
            "train.master_weights=true or model.dtype=float32 keeps them."
        )
    if experiment.train.precision is Precision.fp16 and experiment.model.name and "qwen" in experiment.model.name:
        yield (
            "this model was trained in bf16; in fp16 its activations may overflow: watch skipped_steps and loss_scale."
        )
    train = experiment.train
    if train.optimizer.endswith("_fused") and train.precision is Precision.fp16 and stage.stage == 0:
        yield (
            f"train.optimizer={train.optimizer} leaves out steps that overflow in fp16 without saying so: "
            "train.optimizer=adamw_torch counts them."
        )
    if train.warmup >= 1 and train.max_steps is not None and train.warmup >= train.max_steps:
        yield (
            f"train.warmup={train.warmup:g} steps do not end in train.max_steps={train.max_steps}, so the learning "
            "rate never gets to its highest value: use fewer, or a share such as 0.1."
        )
    if experiment.train.packing and experiment.model.attention is Attention.sdpa:
        yield "train.packing with sdpa attention is right but slow (a block mask): compare with train.packing=false."
