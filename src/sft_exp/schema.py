"""What may be configured: one dataclass per config group, one root that holds them.

Dataclasses say which fields exist and of which type; the YAML files in `conf/` say which values they have.
Every field is read by something (`tests/test_schema.py` proves it), and its meaning stands under it with its unit.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

TRAINING_TEMPLATE = "training"
"""Value of `model.chat_template` that is no file."""


class Dtype(Enum):
    """Type in which model weights are kept."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Precision(Enum):
    """Type in which matrix products are computed."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Attention(Enum):
    """Attention implementation, by the name transformers gives it."""

    auto = "auto"
    eager = "eager"
    sdpa = "sdpa"
    flash_attention_2 = "flash_attention_2"
    flex_attention = "flex_attention"
    varlen = "varlen"


class Weights(Enum):
    """Where the weights come from: the checkpoint, or a random draw of the same shape."""

    pretrained = "pretrained"
    random = "random"


class DatasetKind(Enum):
    """Which reader fetches the rows."""

    files = "files"
    hub = "hub"


class Loss(Enum):
    """Which tokens are trained: assistant turns only, or every token."""

    assistant = "assistant"
    all = "all"


class AdapterKind(Enum):
    """What is trained: every weight, low-rank factors, or low-rank factors over 4-bit weights."""

    full = "full"
    lora = "lora"
    qlora = "qlora"


class Device(Enum):
    """Kind of device the ranks run on; `auto` is resolved by looking at the machine."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


class Launcher(Enum):
    """Program that starts the ranks; one process is always started as a plain child."""

    torchrun = "torchrun"
    deepspeed = "deepspeed"
    accelerate = "accelerate"


class TrackingKind(Enum):
    """Experiment tracker."""

    mlflow = "mlflow"
    none = "none"


class Sampler(Enum):
    """How a search chooses the values of its next trial."""

    tpe = "tpe"
    random = "random"
    grid = "grid"
    nsga2 = "nsga2"


class Pruner(Enum):
    """When a search gives a trial up by its intermediate values."""

    none = "none"
    median = "median"
    hyperband = "hyperband"


class Direction(Enum):
    """Which values of an objective are better."""

    minimize = "minimize"
    maximize = "maximize"


@dataclass(kw_only=True, slots=True)
class Shape:
    """The architecture's numbers, as in the checkpoint's config.json: enough to build it or plan its memory."""

    model_type: str | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool | None = None
    rope_theta: float | None = None


@dataclass(kw_only=True, slots=True)
class Model:
    """Which language model is trained."""

    name: str | None = None
    """Short name used in run names; null takes the last part of `path`."""
    path: str | None = None
    """Hub id or local folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    gguf: str | None = None
    """GGUF file as `python_package/file.gguf`, converted once to a cached folder; takes the place of `path`."""
    weights: Weights = Weights.pretrained
    """`random` builds `shape` with random weights (seeded by `train.seed`): for plans, tests and benchmarks."""
    tokenizer: str | None = None
    """Hub id or local folder of the tokenizer; null takes the model's own, with random weights a small shipped one."""
    dtype: Dtype = Dtype.auto
    """Type the weights are kept in; `auto` follows precision, adapter and ZeRO stage (docs/precision.md)."""
    attention: Attention = Attention.auto
    """Attention implementation; `auto` takes the first of the profile's list that can run."""
    chat_template: str | None = None
    """A jinja file that replaces the tokenizer's chat template; `training` prepares the rows with TRL's training
    template for it and leaves the tokenizer its own."""
    special_tokens: list[str] = field(default_factory=list)
    """Tokens added to the tokenizer; their embedding rows are trained under every adapter."""
    token_descriptions: dict[str, str] = field(default_factory=dict)
    """Token -> text whose pieces give a new token its first row; without one its own name does."""
    train_special_tokens: bool = True
    """`false` leaves the rows of `special_tokens` as they start under an adapter: for comparisons only."""
    trust_remote_code: bool = False
    """Run the checkpoint's own Python code; needs `revision` as a 40-digit commit."""
    shape: Shape = field(default_factory=Shape)
    """Architecture numbers."""


@dataclass(kw_only=True, slots=True)
class Part:
    """One source of rows in a mixture; fields as in `Dataset`."""

    path: Any = None
    """File, folder or glob, or a list of these; for `hub` the dataset id."""
    kind: DatasetKind = DatasetKind.files
    config: str | None = None
    """Configuration name on the hub."""
    split: str = "train"
    """Split on the hub."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    limit: int | None = None
    """Read at most this many rows of this part, in file order."""
    weight: float | None = None
    """Relative share of the conversations that are used; either every part has one or none, which uses all."""


@dataclass(kw_only=True, slots=True)
class Dataset:
    """Which conversations are trained on."""

    name: str | None = None
    """Short name for records; null takes the last part of `path`."""
    kind: DatasetKind = DatasetKind.files
    """`files`: files on disk; `hub`: a dataset on the Hugging Face hub."""
    path: Any = None
    """File, folder or glob, or a list of these; for `hub` the dataset id. `sample:NAME` is a shipped file."""
    config: str | None = None
    """Configuration name on the hub, such as "0625" (a string: unquoted YAML would read an octal number)."""
    split: str = "train"
    """Split on the hub, such as `train` or, with quotes inside, `'dataset.split="train[:1000]"'`."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    streaming: bool = False
    """Read rows from the hub one by one without storing them."""
    mixture: dict[str, Part] = field(default_factory=dict)
    """Several sources by name, in place of `path`, such as `{chat: {path: a.jsonl, weight: 3}}`."""
    limit: int | None = None
    """Use at most this many rows, in file order."""
    shuffle: bool = True
    """Train in an order drawn with `train.seed`; false keeps the order of the files."""
    max_length: int = 1024
    """Longest sequence in tokens; longer ones are cut at the end."""
    max_bad_fraction: float = 0.01
    """Share of rows that may be dropped as bad; above it nothing is trained."""
    eval_fraction: float = 0.05
    """Share of the rows kept for evaluation, chosen by content hash; 0 turns evaluation off."""
    test_fraction: float = 0.0
    """Share of distinct conversations kept for a final test, chosen by content hash."""
    loss: Loss = Loss.assistant
    """Tokens that are trained in conversations; plain text is always trained whole."""
    train_end: bool = True
    """False leaves the end token of every answer out of what is trained: to see what that does."""
    role_map: dict[str, str] = field(default_factory=dict)
    """Further role names, such as `{moderator: system}`."""
    columns: dict[str, str] = field(default_factory=dict)
    """Further column names, such as `{title: prompt, body: completion}`."""
    num_proc: int = 1
    """Processes that tokenise."""


@dataclass(kw_only=True, slots=True)
class Adapter:
    """What is trained. Fields below `kind` are null where the kind has no use for them."""

    kind: AdapterKind = AdapterKind.full
    r: int | None = None
    """Rank of the low-rank factors."""
    alpha: int | None = None
    """Scale of the low-rank update, applied as alpha / r."""
    dropout: float | None = None
    """Dropout before the low-rank factors."""
    target_modules: str | None = None
    """`all-linear` or comma-separated module names such as `q_proj,v_proj`."""
    quant_type: str | None = None
    """4-bit data type: `nf4` or `fp4`."""
    double_quant: bool | None = None
    """Quantise the quantisation constants too."""


@dataclass(kw_only=True, slots=True)
class Zero:
    """DeepSpeed ZeRO. Stage 0 is plain torch (DistributedDataParallel for several processes), without DeepSpeed."""

    stage: int = 0
    """0 shards nothing, 1 the optimizer, 2 also gradients, 3 also parameters."""
    offload_optimizer: bool = False
    """Keep optimizer state in host memory."""
    offload_param: bool = False
    """Keep parameters in host memory (stage 3)."""
    pin_memory: bool = False
    """Page-lock offloaded memory: faster, but some platforms fail on it and it cannot be swapped."""
    reduce_bucket_size: int = 200_000_000
    """Elements reduced at a time; memory on the card grows with it."""
    allgather_bucket_size: int = 200_000_000
    """Elements gathered at a time (stages 1 and 2)."""
    json: str | None = None
    """A DeepSpeed configuration file of one's own, merged as `extra` is."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Merged into the DeepSpeed configuration; values that contradict the run are refused."""


@dataclass(kw_only=True, slots=True)
class Hw:
    """Hardware profile: what the machine is and what that implies."""

    name: str = "auto"
    device: Device = Device.auto
    processes: int | None = None
    """Number of ranks on each machine; null is resolved by looking at the machine."""
    machines: int = 1
    """Number of machines, each with as many ranks (docs/machines.md)."""
    rendezvous: str | None = None
    """`host:port` of the first of several machines; the ranks use the port after it."""
    devices: list[int] | None = None
    """Which cards, by the driver's numbering, such as `[4,5,6,7]`; null takes the first `processes`."""
    precision: Precision = Precision.auto
    """Precision the profile is meant for."""
    attention: list[str] = field(default_factory=lambda: ["sdpa"])
    """Attention implementations in order of preference."""
    capability: float | None = None
    """CUDA compute capability of the card, such as 8.9."""
    memory_gib: float | None = None
    """Memory of one card in GiB: what the memory plan is held against, and what an unset micro batch is chosen by."""
    memory_check: bool = True
    """Refuse a run whose memory plan exceeds the card, or the host, by more than the plan's error; false starts it."""
    peak_tflops: float | None = None
    """Dense peak of one card at `precision`, in TFLOP/s, by the vendor's data sheet: the base of MFU."""
    threads: int | None = None
    """CPU threads per rank; null shares the cores out."""
    launcher: Launcher = Launcher.torchrun
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables set for the ranks."""

    @property
    def ranks(self) -> int:
        """Ranks on all machines together."""
        return (self.processes or 1) * max(1, self.machines)


@dataclass(kw_only=True, slots=True)
class Train:
    """How it is trained. Whatever is not here is reached through `extra`."""

    max_steps: int | None = None
    """Optimizer steps; null trains `epochs`."""
    epochs: float = 1.0
    """Passes over the data, where `max_steps` is null."""
    global_batch: int = 16
    """Conversations per optimizer step over all ranks."""
    micro_batch: int | None = None
    """Conversations per rank and forward pass; null takes the largest that fits by the memory plan, and where that
    cannot be made (no `hw.memory_gib`, no shape, the CPU) the largest divisor up to 8."""
    learning_rate: float = 2e-5
    scheduler: str = "linear"
    """Any learning-rate schedule of transformers."""
    scheduler_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the schedule, such as `{num_cycles: 2}`."""
    warmup: float = 0.0
    """Warm-up: a share of all steps if below 1, else a number of steps."""
    optimizer: str = "auto"
    """Any optimizer name of transformers; `auto` takes torch's AdamW, fused but for fp16 without DeepSpeed."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 turns clipping off."""
    precision: Precision = Precision.auto
    """`auto` takes the profile's."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    master_weights: bool | None = None
    """fp32 copies of 16-bit weights for the optimizer; null keeps them wherever full weights are trained in bf16."""
    compile: bool = False
    """Compile each decoder layer with torch.compile: faster after the first minute."""
    profile: bool = False
    """Watch three steps with torch's profiler: a trace and a summary in the run folder."""
    packing: bool = False
    """Put several conversations into one row of `dataset.max_length` tokens (TRL's best-fit packing)."""
    seed: int = 42
    logging_steps: int = 10
    eval_steps: int | None = None
    """Steps between evaluations; null evaluates once, at the end."""
    save_steps: int | None = None
    """Steps between checkpoints; null saves only the final model."""
    save_total_limit: int | None = 2
    """Checkpoints kept; null keeps all."""
    early_stopping: int | None = None
    """Stop after this many evaluations without a better eval loss."""
    load_best: bool = False
    """The final model is the checkpoint with the lowest eval loss."""
    sample_prompts: list[str] = field(default_factory=list)
    """Prompts answered before and after training."""
    sample_tokens: int = 64
    """Longest sample answer in tokens."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of TRL's SFTConfig."""


@dataclass(kw_only=True, slots=True)
class Limits:
    """Where the verdict on a run's behaviour turns; docs/behaviour.md says how they were found."""

    ended: float = 0.5
    """`never stops` below this share of answers that end by themselves, of those that are expected to."""
    repetition: float = 0.3
    """`repeats itself` where the mean share of repeated 4-grams has risen by more than this."""
    distinct: float = 0.5
    """`says the same to everything` where distinct-2 over all answers falls below this share of the base's."""
    empty: float = 0.2
    """`empty answers` where their share has risen by more than this."""
    language: float = 0.25
    """`wrong language` where the share of answers in the prompt's script or language has fallen by more than this."""
    thinking: float = 0.5
    """`lost its reasoning` below this share of the base's answers that think."""
    tokens: float = 0.5
    """`added tokens unused` or `malformed` below this share of the answers that should have them."""
    kl: float = 1.0
    """`forgot` above this divergence from the base on general text, in nats per token."""
    perplexity: float = 2.0
    """`forgot` above this many times the base's perplexity on general text."""
    memorised: float = 0.1
    """`memorised its rows` where the training loss is below this share of the loss on unseen answers."""


@dataclass(kw_only=True, slots=True)
class Eval:
    """What a run's answers are judged by, besides its losses."""

    probes: bool | None = None
    """Answer prompts before training, at evaluations and at the end, and judge what became of the model; null does so
    unless the weights begin random, of which no answer can be expected."""
    prompts: str | None = None
    """File of prompts, one a line or jsonl rows with `prompt`; null takes the 64 that are shipped."""
    count: int | None = None
    """Prompts that are answered, spread over the file; null takes all on a card and 16 on the CPU."""
    tokens: int | None = None
    """Longest answer in tokens; null takes 128 on a card and 48 on the CPU."""
    batch: int = 32
    """Prompts answered at a time on each rank; halved where a card has no room for so many."""
    every: int = 1
    """Probe at every n-th evaluation."""
    budget: float = 0.05
    """Share of the training time that probes may take: one that would cost more is left out, but for first and last."""
    answers: int | None = None
    """Validation rows, and as many test rows, whose answers are scored; null takes 32 on a card and 8 on the CPU."""
    metrics: list[str] = field(default_factory=list)
    """Own scores, such as `my_pkg.scores:f1`: answers and references in, a dict of named numbers out."""
    stop_degenerate: bool = False
    """Stop the run at an evaluation whose probes show a degenerate model."""
    limits: Limits = field(default_factory=Limits)
    """Where the verdict turns."""


@dataclass(kw_only=True, slots=True)
class Tracking:
    """Where metrics go besides the run folder."""

    kind: TrackingKind = TrackingKind.mlflow
    uri: str | None = None
    """Tracking server; null takes MLFLOW_TRACKING_URI, else a sqlite file under `outputs`."""
    experiment: str = "sft_exp"
    """MLflow experiment the run is filed under."""
    tags: dict[str, str] = field(default_factory=dict)
    """Further tags of the run."""


@dataclass(kw_only=True, slots=True)
class Sweep:
    """How several jobs are run, and what a search is for; a single run needs none of it."""

    per_device: int = 1
    """Jobs that share one GPU, or the CPU, at a time; each is planned for its share of the memory."""
    resume: str | None = None
    """Null goes on with the unfinished sweep of the same command, if there is one; `never` starts anew; a sweep folder
    goes on with that one and tries its failed jobs again."""
    objective: list[str] = field(default_factory=lambda: ["eval/loss"])
    """Logged metrics by which jobs are compared; two need `sampler=nsga2`."""
    direction: list[Direction] = field(default_factory=lambda: [Direction.minimize])
    """For each objective, which values are better."""
    sampler: Sampler | None = None
    """Search with Optuna: `tpe`, `random`, `grid` or `nsga2`; null runs the combinations of the command line."""
    trials: int = 20
    """Jobs of a search."""
    space: dict[str, Any] = field(default_factory=dict)
    """What a search varies: a list of values for each key, or a range as `{low: 1e-5, high: 1e-3, log: true}`."""
    pruner: Pruner = Pruner.none
    """Ends hopeless jobs of a search by the objective of their evaluations, so it needs `train.eval_steps`."""
    pruner_warmup: int = 0
    """Steps for which no job is given up; with `hyperband` the smallest number of steps that a job is given."""
    seed: int = 0
    """Seed of the search."""


@dataclass(kw_only=True, slots=True)
class Experiment:
    """One run."""

    model: Model = field(default_factory=Model)
    dataset: Dataset = field(default_factory=Dataset)
    adapter: Adapter = field(default_factory=Adapter)
    zero: Zero = field(default_factory=Zero)
    hw: Hw = field(default_factory=Hw)
    train: Train = field(default_factory=Train)
    tracking: Tracking = field(default_factory=Tracking)
    sweep: Sweep = field(default_factory=Sweep)
    eval: Eval = field(default_factory=Eval)
    name: str | None = None
    """Run name; null makes one of model, adapter, ZeRO stage and a short unique part."""
    outputs: str = "outputs"
    """Folder that holds runs and the tracking store."""
    resume: str | None = None
    """Run folder whose newest checkpoint is continued, in the same MLflow run."""


def register() -> None:
    """Make the root dataclass known to Hydra as `schema`."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="schema", node=Experiment)
