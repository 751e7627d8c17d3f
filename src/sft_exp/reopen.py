"""A saved folder, read again and compared with what should be in it: nothing is believed because it was written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.core_model_loading import revert_weight_conversion

PROBE = "The sky 是蓝色的。\n{tokens}x{tokens}"
"""Text whose ids are compared; `tokens` are the tokens that were added."""
Tensors = Mapping[str, torch.Tensor]


def expected(model: PreTrainedModel | PeftModel, state: Tensors | None) -> Tensors:
    """The tensors that `save_pretrained` writes; `state` is the gathered state under DeepSpeed, else None."""
    if isinstance(model, PeftModel):
        made: Tensors = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
        return made
    plain: Tensors = revert_weight_conversion(model, state if state is not None else model.state_dict())
    return plain


@dataclass
class Reopened:
    """What was found in a saved folder."""

    problems: list[str] = field(default_factory=list)
    """One sentence for each difference from the model."""
    tensors: int = 0
    not_finite: list[str] = field(default_factory=list)
    """Names of weights that hold NaN or infinity."""


def weights(folder: Path, wanted: Tensors) -> Reopened:
    """Compare the safetensors of a folder with the `wanted` tensors, bit by bit."""
    made, found = Reopened(), set[str]()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118 (no mapping)
                found.add(name)
                tensor = reader.get_tensor(name)
                if sentence := _difference(name, tensor, wanted.get(name)):
                    made.problems.append(sentence)
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    made.not_finite.append(name)
    made.tensors = len(found)
    places = {wanted[name].data_ptr() for name in found & wanted.keys()}  # of tied weights one is written
    if missing := [name for name in wanted if name not in found and wanted[name].data_ptr() not in places]:
        made.problems.append(f"{folder} lacks {len(missing)} of {len(wanted)} weights, {missing[0]} first: look for a "
                             "full disk, and run again with resume=RUN_FOLDER.")  # fmt: skip
    return made


def _difference(name: str, tensor: torch.Tensor, wanted: torch.Tensor | None) -> str | None:
    """What is wrong with one tensor; bits are compared, since NaN equals nothing."""
    if wanted is None:
        return f"the saved weight {name} is none of the model's: this is a fault of the saving, report it."
    wanted = wanted.detach().cpu().contiguous()
    if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
        there, here = (f"{each.dtype} of shape {tuple(each.shape)}" for each in (tensor, wanted))
        return (
            f"the saved weight {name} is {there} and the model's is {here}: this is a fault of the saving, report it."
        )
    if not torch.equal(tensor.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)):
        return f"the saved weight {name} has other values than the model's: check the disk."
    return None


def tokens(folder: Path, tokenizer: PreTrainedTokenizerFast, added: list[str]) -> Iterator[str]:
    """One sentence for each way in which the tokenizer of a folder differs from the one that trained."""
    again = PreTrainedTokenizerFast.from_pretrained(str(folder))
    probe = PROBE.format(tokens="".join(added))
    for what, one, other in (
        ("vocabulary", tokenizer.get_vocab(), again.get_vocab()),
        ("ids of a text", tokenizer(probe).input_ids, again(probe).input_ids),
        ("chat template", tokenizer.chat_template, again.chat_template),
        ("special tokens", sorted(tokenizer.all_special_tokens), sorted(again.all_special_tokens)),
        ("end token", tokenizer.eos_token, again.eos_token),
        ("padding token", tokenizer.pad_token, again.pad_token),
    ):
        if one != other:
            yield f"the saved tokenizer has another {what} than the one that trained: this is a fault, report it."
