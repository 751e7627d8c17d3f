"""Hydra's and OmegaConf's errors as one sentence: what, which value, what to do instead."""

import dataclasses
import difflib
import importlib.util
import re

from sft_exp import own_files, quoting, schema
from sft_exp.nearest import closest
from sft_exp.request import flatten, to_plain

MOVED = {
    "warmup_ratio": "train.warmup (a share of all steps if below 1)",
    "warmup_steps": "train.warmup (a number of steps if 1 or more)",
    "max_seq_length": "dataset.max_length",
    "max_length": "dataset.max_length",
    "cutoff_len": "dataset.max_length",
    "sequence_len": "dataset.max_length",
    "group_by_length": "+train.extra.train_sampling_strategy=group_by_length",
    "lr": "train.learning_rate",
    "per_device_train_batch_size": "train.micro_batch",
    "micro_batch_size": "train.micro_batch",
    "gradient_accumulation_steps": "train.global_batch (accumulation follows from it)",
    "num_train_epochs": "train.epochs",
    "num_epochs": "train.epochs",
    "lr_scheduler_type": "train.scheduler",
    "optim": "train.optimizer",
    "bf16": "train.precision=bf16",
    "fp16": "train.precision=fp16",
    "output_dir": "outputs",
    "overwrite_output_dir": "nothing: every run gets a folder of its own under `outputs`",
    "logging_dir": "tracking.uri",
    "report_to": "tracking=mlflow or tracking=none",
    "model_name_or_path": "model.path",
    "torch_dtype": "model.dtype",
    "attn_implementation": "model.attention",
    "load_in_4bit": "adapter=qlora",
    "lora_r": "adapter.r",
    "lora_rank": "adapter.r",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "lora_target": "adapter.target_modules",
    "resume_from_checkpoint": "resume=RUN_FOLDER",
    "save_safetensors": "nothing: weights are always saved as safetensors",
    "no_cuda": "hw.device=cpu",
    "use_cpu": "hw.device=cpu",
    "deepspeed": "zero=0, 1, 2, 3, 2_offload or 3_offload",
    "evaluation_strategy": "train.eval_steps",
    "eval_strategy": "train.eval_steps",
}
"""Names that other tools or older releases use -> where the same thing is set here."""


def known_keys() -> list[str]:
    """Every dotted key of the schema."""
    return list(flatten(to_plain(schema.Experiment())))


MIXTURE = "dataset.mixture."
OPEN = (
    "model.token_descriptions.",
    "train.extra.",
    "train.scheduler_args.",
    "zero.extra.",
    "hw.env.",
    "tracking.tags.",
    "sweep.space.",
    "dataset.role_map.",
    "dataset.columns.",
    MIXTURE,
)
"""Fields that take any key."""


def unknown_key(key: str, where: str = "") -> str:
    """One sentence about a key that the schema does not have."""
    last = key.rpartition(".")[2]
    if last in MOVED:
        return f"there is no {key}{where}; here it is {MOVED[last]}."
    keys = known_keys()
    if key.startswith(MIXTURE):
        names = [field.name for field in dataclasses.fields(schema.Part)]
        return f"there is no {key}{where}.{closest(last, names)} A part has {', '.join(names)}."
    words = {key: key for key in [*keys, *(name.partition(".")[0] for name in keys)]}
    words |= {name.rpartition(".")[2]: name for name in keys}
    words |= {old: new for old, new in MOVED.items() if not new.startswith("nothing")}
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.8) or difflib.get_close_matches(
        last, words, n=1, cutoff=0.6
    )
    hint = f" Did you mean {words[near[0]]}?" if near else " All keys: python -m sft_exp --cfg job."
    return f"there is no {key}{where}.{hint}"


def explain(error: BaseException) -> str:
    """The sentence for an error and its causes."""
    links = _chain(error)
    typed = next((getattr(link, "override", None) for link in links), None)  # of Hydra's OverrideParseException
    if typed:
        return quoting.unreadable(typed)
    if sentence := own_files.broken(error):
        return sentence
    text = "\n".join(str(link) for link in links)
    for reader in (
        _launcher,
        own_files.explain,
        _several,
        _deleted,
        _package,
        _option,
        _bad_key,
        _bad_value,
        _group,
        _no_name,
    ):
        sentence = reader(text)
        if sentence:
            return sentence
    return " ".join(str(error).split())


def _launcher(text: str) -> str | None:
    match = re.search(r"Could not (?:find|load) 'hydra/launcher/((submitit|ray)\w*)'", text)
    plugins = importlib.util.find_spec("hydra_plugins")
    if not match or (plugins and importlib.util.find_spec(f"hydra_plugins.hydra_{match[2]}_launcher")):
        return None
    asked = re.search(r"In 'hydra/launcher/(\w+)'", text) or match
    how = "pip install 'sft_exp[slurm]'" if match[2] == "submitit" else "see docs/sweeps.md"
    return f"hydra/launcher={asked[1]} needs the package hydra-{match[2]}-launcher: {how}."


def _chain(error: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links


def _several(text: str) -> str | None:
    match = re.search(r"Ambiguous value for argument '([^'=]+)=([^']*)'", text)
    range_ = re.search(r"Sweep parameters '(.*)' requires? --multirun", text)
    if range_:
        return f"{range_[1]} stands for several values: give one, or add -m to run each."
    if not match:
        return None
    key, values = match[1], match[2]
    if "." not in key:
        return f"{key}={values} names several options: choose one, or add -m to run each."
    return (
        f"{key}={values} are several values: write {quoting.quoted(f'{key}={values}')} for one text, "
        f"'{key}=[{values}]' for a list, or add -m to run each."
    )


def _deleted(text: str) -> str | None:
    match = re.search(r"Could not delete (?:from config\.|config value.*?) '([^']+)'", text)
    if match:
        return unknown_key(match[1])
    match = re.search(r"does not support deletion\s+full_key: (\S+)", text)
    return f"{match[1]} cannot be taken away: give it another value." if match else None


def _package(text: str) -> str | None:
    match = re.search(r"Override (\S+) looks like a config group override|Could not override '(\w+@\S+)'\.", text)
    if not match:
        return None
    return f"{match[1] or match[2]} has an @ in its key, which no key here has: write GROUP=OPTION or KEY=VALUE."


def _option(text: str) -> str | None:
    match = re.search(
        r"Could not find '([\w/]+)/([^'/]+)'\s+Available options in '[^']+':\s+((?:\S+\s*)+?)(?:\n\n|Config|$)", text
    )
    if not match:
        return None
    group, option, options = match[1], match[2], match[3].split()
    return f"{group}={option} is not an option.{closest(option, options)} Options: {', '.join(options)}."


def _bad_key(text: str) -> str | None:
    match = re.search(r"Key '([^']+)' (?:is )?not in '(\w+)'", text)
    if not match:
        return None
    full = re.search(r"full_key: (\S[^\n]*)", text)
    file = re.search(r"In '([^']+)': \w*(?:Validation error|ConfigKeyError|Config\w*Error)", text)
    where = f" (in {file[1]}.yaml)" if file else ""
    return unknown_key(full[1] if full else match[1], where)


def _bad_value(text: str) -> str | None:
    key = re.search(r"full_key: (\S[^\n]*)", text)
    if not key:
        return None
    if "is not Optional" in text:
        return f"{key[1]}=null is not possible: give a value, or leave it out."
    if f"{key[1]}." in OPEN and ("to Dict[" in text or "Cannot merge DictConfig with ListConfig" in text):
        return f"{key[1]} takes a mapping: write +{key[1]}.KEY=VALUE for each of its keys."
    if "to Dict[" in text or "Cannot merge DictConfig with ListConfig" in text:
        return f"{key[1]} takes a mapping: quote it as '{key[1]}={{KEY: VALUE}}'."
    if missing := re.search(r"Interpolation key '([^']+)' not found", text):
        return (
            f"{key[1]} holds ${{{missing[1]}}}, which stands for another value and there is none of that name: write "
            f"\\${{{missing[1]}}} if the text itself is meant."
        )
    if "is not in struct" in text and re.fullmatch(r"dataset\.mixture\.[^.]+", key[1]):
        return f"{key[1]} is a new part, whose fields are added: write +{key[1]}.path=FILE."
    if "is not in struct" in text:
        return f"{key[1]} is a key of your own, which is added and not changed: write +{key[1]}=VALUE."
    choice = re.search(r"Invalid value '([^']*)', expected one of \[([^\]]*)\]", text)
    if choice:
        options = choice[2].split(", ")
        return f"{key[1]}={choice[1]} is not possible.{closest(choice[1], options)} Choices: {choice[2]}."
    value = re.search(r"Value '([^']*)'(?: of type '\w+')? (?:could not be converted to|is not a valid) (\w+)", text)
    if value:
        return f"{key[1]}={value[1]} is not possible: it takes {_kind(value[2])}."
    container = re.search(r"Invalid value assigned: (\w+) is not a (?:ListConfig|DictConfig)", text)
    if container:
        return f"{key[1]} takes a list or mapping, not one value: quote it as '{key[1]}=[...]' or '{key[1]}={{...}}'."
    group = re.search(
        r"Cannot convert '(\w+)' to (\w+)|Invalid type assigned: (\w+) is not a subclass of (\w+)\. value: (.*)", text
    )
    if group and key[1].startswith("dataset.mixture."):
        return f"{key[1]} takes fields such as path and weight, one by one: write +{key[1]}.path=FILE."
    if group:
        return f"{key[1]} takes {group[2] or group[4]}, not {group[5] or group[1]}."
    first = text.split("full_key")[0].strip().splitlines()[-1]
    return f"{key[1]}: {first}."


def _kind(name: str) -> str:
    kinds = {"Float": "a number", "Integer": "a whole number", "bool": "true or false", "Boolean": "true or false"}
    return kinds.get(name, f"a value of type {name}")


def _group(text: str) -> str | None:
    match = re.search(r"Could not override '([^']+)'", text)
    if match:
        file = re.search(r"In '([^']+)': Could not override", text)
        return unknown_key(match[1].partition("@")[0], f" (in {file[1]}.yaml)" if file else "")
    append = re.search(r"Could not append to config\. An item is already at '([^']+)'", text)
    if append:
        return f"{append[1]} is there already: write it without the +."
    return None


def _no_name(text: str) -> str | None:
    match = re.search(r"(?:Config group override must be a string|Unsupported item value in defaults ?:).*", text)
    if not match:
        return None
    kind = re.search(r"\b(int|float|bool|NoneType)\b", match[0])
    return (
        f"a group's option must be a name and one is of type {kind[1] if kind else 'unknown'}: "
        'write GROUP=OPTION, with quotes around a number (zero: "2" in a file, hw="\'4090\'" in a shell).'
    )
