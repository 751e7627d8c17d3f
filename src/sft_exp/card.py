"""The model card: README.md of a final model, which says where it comes from and how to load it.

The front matter has what the hub accepts: ids of the hub only, and no licence, since that is the owner's to choose.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sft_exp import card_tables as tables
from sft_exp import checkpoint, request, rundir, schema
from sft_exp.rundir import RunDir
from sft_exp.schema import AdapterKind, DatasetKind, Experiment, Weights

LANGUAGES = 0.05
"""Share of the rows from which a language is named."""
MADE = {
    AdapterKind.full: "All weights of {} were fine-tuned.",
    AdapterKind.lora: "A LoRA adapter of {}.",
    AdapterKind.qlora: "A LoRA adapter trained on 4-bit weights of {}.",
}
MERGED = {
    AdapterKind.full: "Saved",
    AdapterKind.lora: "Merged into its base",
    AdapterKind.qlora: "Merged into the dequantised 4-bit base",
}
CODE = """```python
{imports}

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = {loader}.from_pretrained("FOLDER", dtype="auto")
messages = [{{"role": "user", "content": "Hello"}}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = model.generate(**inputs, max_new_tokens=256)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(answer, skip_special_tokens=True))
```"""
PLAIN = "from transformers import AutoModelForCausalLM, AutoTokenizer"
PEFT = "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer"


def leave(run: RunDir) -> None:
    """Write the card of a finished run's model, in place of PEFT's own; a full disk does not make the run fail."""
    try:
        write(run, run.model)
    except OSError as error:
        print(f"note: no model card could be written into {run.model} ({error.strerror}).", flush=True)


def write(run: RunDir, folder: Path, *, merged: str = "") -> None:
    """Write the card into `folder`; `merged` says how far a merged model is from the trained one."""
    rundir.write_text(folder / "README.md", text(run, merged=merged))


def text(run: RunDir, *, merged: str = "") -> str:
    """The whole card."""
    asked = request.read(run.request)
    experiment, whole = asked.experiment, bool(merged)
    data, result, facts = (rundir.read_json(file) for file in (run.data, run.result, run.record))
    front = yaml.safe_dump(front_matter(experiment, data, merged=whole), sort_keys=False, allow_unicode=True)
    sections = {
        "Load it": _loading(experiment, merged=whole),
        "Behaviour": tables.behaviour(run),
        "Data": tables.table(tables.data(experiment, data)),
        "Metrics": tables.table(tables.metrics(result)),
        "Training": tables.table(tables.training(asked)),
        "Code": tables.table(tables.code(facts)),
    }
    parts = [f"---\n{front}---", f"# {run.name}", _opening(experiment, merged)]
    return "\n\n".join(parts + [f"## {title}\n\n{body}" for title, body in sections.items()]) + "\n"


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
    kind = experiment.adapter.kind
    made = MADE[kind].format(base_name(experiment))
    return f"{made} {MERGED[kind]}; logits against the trained model: {merged}." if merged else made


def _loading(experiment: Experiment, *, merged: bool) -> str:
    adapter = experiment.adapter
    if adapter.kind is AdapterKind.full or merged:
        return CODE.format(imports=PLAIN, loader="AutoModelForCausalLM")
    if experiment.model.weights is Weights.random:
        return "Its base exists nowhere else: `python -m sft_exp chat RUN` draws it again, `merge` makes a whole model."
    code = CODE.format(imports=PEFT, loader="AutoPeftModelForCausalLM")
    if adapter.kind is AdapterKind.lora:
        return code
    return (
        f"{code}\n\nIt learned on 4-bit weights ({adapter.quant_type}, double quantisation: {adapter.double_quant}) "
        "and answers differently on unrounded ones: pass a `BitsAndBytesConfig` of this kind as `quantization_config`, "
        "or make a whole model with `python -m sft_exp merge RUN --out DIR`."
    )
