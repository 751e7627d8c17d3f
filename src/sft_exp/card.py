"""The model card: README.md of a final model, which says where it comes from and how to load it.

The front matter has what the hub accepts: ids of the hub only, and no licence, since that is the owner's to choose.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sft_exp import checkpoint, request, rundir, schema, trained
from sft_exp.request import Request, flatten, to_plain
from sft_exp.rundir import RunDir
from sft_exp.schema import AdapterKind, DatasetKind, Experiment, Weights

SHOWN = ("adapter", "dataset", "train", "zero")
"""Groups whose values are listed where they are not the default."""
HIDDEN = re.compile(r"dataset\.(name|path|mixture\S*|num_proc)|train\.(sample_\w+|logging_steps|save_\w+)")
"""Values of these groups that say nothing about the model, or where files were on the machine."""
LANGUAGES = 0.05
"""Share of the rows from which a language is named."""
OPTIONAL = {
    "Evaluation loss": "eval_loss",
    "Best evaluation loss": "eval_loss_best",
    "Test loss": "test_loss",
    "Tokens per second": "tokens_per_second",
    "MFU": "mfu",
}
"""Name of a metric -> its key in result.json, where it may be null."""
VERSIONS = ("python", "torch", "transformers", "trl", "peft", "datasets", "tokenizers", "deepspeed", "bitsandbytes")


def write(run: RunDir, folder: Path | None = None, *, merged: str = "") -> None:
    """Write the card into the run's model folder, or into `folder`; `merged` says how far a merged model is off.

    PEFT has left a card of its own there, which is replaced.
    """
    rundir.write_text((folder or run.model) / "README.md", text(run, merged=merged))


def text(run: RunDir, *, merged: str = "") -> str:
    """The whole card."""
    asked = request.read(run.request)
    data, result, facts = (rundir.read_json(file) for file in (run.data, run.result, run.record))
    front = yaml.safe_dump(
        front_matter(asked.experiment, data, merged=bool(merged)), sort_keys=False, allow_unicode=True
    )
    parts = [
        f"---\n{front}---", f"# {run.name}", _opening(asked.experiment, merged), "## Load it",
        _loading(asked.experiment, merged=bool(merged)), "## Behaviour", "\n".join(_behaviour(run)), "## Data",
        _table(_data(asked.experiment, data)), "## Metrics", _table(_metrics(result)), "## Training",
        _table(_training(asked)), "## Code", _table(_code(facts)),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def front_matter(experiment: Experiment, data: Mapping[str, Any], *, merged: bool) -> dict[str, Any]:
    """Metadata for the hub, in its order."""
    kind = experiment.adapter.kind
    adapter = kind is not AdapterKind.full and not merged
    base, datasets = base_id(experiment), list(_hub_datasets(experiment))
    languages = [code for code, share in data.get("languages", {}).items() if share >= LANGUAGES and len(code) == 2]
    return {
        **({"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"} if base else {}),
        **({"datasets": datasets} if datasets else {}),
        **({"language": languages} if languages else {}),
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["sft_exp", "sft", "trl", *([kind.value] if kind is not AdapterKind.full else [])],
    }


def base_id(experiment: Experiment) -> str | None:
    """The base's id on the hub; None for a folder, a file or drawn weights."""
    model = experiment.model
    if model.gguf or model.weights is Weights.random or not model.path or checkpoint.looks_local(model.path):
        return None
    return model.path


def base_name(experiment: Experiment) -> str:
    """The base for people, without the folders of a machine."""
    model = experiment.model
    if model.weights is Weights.random:
        return f"random weights in the shape of {model.name or model.shape.model_type} (seed {experiment.train.seed})"
    if identity := base_id(experiment):
        return f"[{identity}](https://huggingface.co/{identity})" + (f" at {model.revision}" if model.revision else "")
    return model.gguf or Path(str(model.path)).name


def _hub_datasets(experiment: Experiment) -> Iterator[str]:
    sources: list[schema.Dataset | schema.Part] = [experiment.dataset, *experiment.dataset.mixture.values()]
    for source in sources:
        if source.kind is DatasetKind.hub and isinstance(source.path, str):
            yield source.path


def _opening(experiment: Experiment, merged: str) -> str:
    kind = experiment.adapter.kind.value
    made = {"full": "All weights of {} were fine-tuned.", "lora": "A LoRA adapter of {}.",
            "qlora": "A LoRA adapter trained on 4-bit weights of {}."}[kind]  # fmt: skip
    made = made.format(base_name(experiment))
    if not merged:
        return made
    how = {"full": "Saved", "lora": "Merged into its base", "qlora": "Merged into the dequantised 4-bit base"}[kind]
    return f"{made} {how}; logits against the trained model: {merged}."


def _loading(experiment: Experiment, *, merged: bool) -> str:
    adapter = experiment.adapter.kind is not AdapterKind.full and not merged
    if adapter and experiment.model.weights is Weights.random:
        return "Its base exists nowhere else: `python -m sft_exp chat RUN` draws it again, `merge` makes a whole model."
    if adapter:
        lines = ["from peft import AutoPeftModelForCausalLM", "from transformers import AutoTokenizer", "",
                 'model = AutoPeftModelForCausalLM.from_pretrained("FOLDER", dtype="auto")']  # fmt: skip
    else:
        lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", "",
                 'model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")']  # fmt: skip
    lines += [
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
        'messages = [{"role": "user", "content": "Hello"}]',
        "inputs = tokenizer.apply_chat_template("
        'messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)',
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=256)[0]))",
    ]
    code = "\n".join(lines)
    quantized = adapter and experiment.adapter.kind is AdapterKind.qlora
    hint = (
        "It learned on the 4-bit weights: load the base with the same `BitsAndBytesConfig`"
        f" ({experiment.adapter.quant_type}, double quantisation {str(experiment.adapter.double_quant).lower()}) as"
        " `quantization_config`, or merge it with `python -m sft_exp merge RUN --out DIR`."
    )
    return f"```python\n{code}\n```" + (f"\n\n{hint}" if quantized else "")


def _behaviour(run: RunDir) -> Iterator[str]:
    found = trained.behaviour(run)
    if not found:
        yield "Its answers were not judged in this run."
        return
    yield f"Verdict: **{found['verdict']}**"
    for reason in found.get("reasons") or []:
        yield f"- {reason}"
    metrics, base = found.get("metrics") or {}, found.get("base") or {}
    rows = [(name, f"{_number(value)} | {_number(base.get(name))}") for name, value in metrics.items()]
    if rows:
        yield "\n" + _table(rows, head="| Metric | Trained | Base |\n|---|---|---|")


def _data(experiment: Experiment, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    dropped = sum(data["dropped"].values())
    why = ", ".join(f"{reason} {count}" for reason, count in sorted(data["dropped"].items()))
    yield "Name", _data_name(experiment)
    yield "Fingerprint", f"`{data['fingerprint']}`"
    yield (
        "Rows read / kept / dropped",
        f"{data['rows']:,} / {data['kept']:,} / {dropped:,}" + (f" ({why})" if why else ""),
    )
    yield (
        "Rows for training / evaluation / test",
        " / ".join(f"{data[f'{s}_rows']:,}" for s in ("train", "eval", "test")),
    )
    yield "Tokens / of them trained", f"{data['tokens']:,} / {data['trained_tokens']:,}"
    yield "Rows cut at the length limit", f"{data['part_truncated']:,}"
    if data.get("streamed"):
        yield "Streamed", "yes: the numbers are those of the first rows"


def _data_name(experiment: Experiment) -> str:
    dataset = experiment.dataset
    if dataset.mixture:
        return ", ".join(f"{name}" for name in dataset.mixture)
    paths = dataset.path if isinstance(dataset.path, list) else [dataset.path]
    local = dataset.kind is DatasetKind.files
    return dataset.name or ", ".join(Path(str(path)).name if local else str(path) for path in paths)


def _metrics(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "Steps", f"{result['steps']} of {result['total_steps']}"
    yield "Training loss, first / last", f"{_number(result['loss_first'])} / {_number(result['loss_last'])}"
    for name, key in OPTIONAL.items():
        if result.get(key) is not None:
            yield name, _number(result[key])
    yield "Tokens seen", f"{result['tokens_seen']:,}"
    yield f"Peak memory of the {result['peak_memory_of']}", f"{float(result['peak_memory_gib']):.2f} GiB"
    yield "Parameters / trained", f"{result['parameters']:,} / {result['trainable_parameters']:,}"


def _training(asked: Request) -> Iterator[tuple[str, Any]]:
    """Values that are not the schema's default; hardware by its profile."""
    default, hw = flatten(to_plain(schema.Experiment())), asked.experiment.hw
    yield "hardware", f"{hw.name}: {hw.processes} x {hw.device.value}"
    yield "model.dtype", asked.experiment.model.dtype.value
    for key, value in flatten(to_plain(asked.experiment)).items():
        if key.partition(".")[0] in SHOWN and value != default.get(key) and not HIDDEN.fullmatch(key):
            yield key, f"`{value}`"


def _code(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    code, versions = facts["git"], facts["versions"]
    changed = " with uncommitted changes" if code.get("dirty") else ""
    yield "git commit", f"`{code['commit']}`{changed}" if code.get("commit") else "none"
    yield "sft_exp", versions.get("sft_exp", "not installed")
    yield "versions", ", ".join(f"{name} {versions[name]}" for name in VERSIONS if name in versions)


def _table(rows: "Iterator[tuple[str, Any]] | list[tuple[str, Any]]", head: str = "| | |\n|---|---|") -> str:
    return "\n".join([head, *(f"| {name} | {value} |" for name, value in rows)])


def _number(value: Any) -> str:
    """Four significant digits; non-finite numbers are stored as text."""
    return "-" if value is None else f"{float(value):,.4g}" if isinstance(value, int | float) else str(value)
