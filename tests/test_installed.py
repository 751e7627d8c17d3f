"""What is known of the libraries without importing them, compared with the libraries themselves."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from sft_exp import adapter, installed, schedules, targets, zero_extra
from sft_exp.rules import shape

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    ("annotation", "value", "wanted"),
    [
        ("float | None", "abc", "a number or null"),
        ("float | None", 1, None),
        ("float | None", None, None),
        ("float", True, "a number"),
        ("Optional[bool]", None, None),
        ("Optional[bool]", 1, "true or false or null"),
        ("dict[str, Any] | str | None", [1], "a mapping or text or null"),
        ("None | str | list[str]", ["a"], None),
        ("SchedulerType | str", 1, None),
    ],
)
def test_type_problem(annotation: str, value: Any, wanted: str | None) -> None:
    assert installed.type_problem(ast.parse(annotation, mode="eval").body, value) == wanted


def test_a_library_that_is_not_there() -> None:
    assert installed.annotations("no_such_package/a.py", "A") == {}
    assert installed.texts(installed.assigned("transformers/no_such_file.py", "A")) == []


def test_optimizers() -> None:
    from transformers.training_args import OptimizerNames

    assert set(schedules.optimizers()) == {member.value for member in OptimizerNames}


def test_architectures() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert set(shape.architectures()) == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()
    assert set(shape.USUAL) < set(shape.architectures())


@pytest.mark.parametrize("name", schedules.SCHEDULERS)
def test_arguments_of_a_schedule(name: str) -> None:
    """Each argument that is known is taken, and one that is not is not."""
    import torch
    from transformers import get_scheduler

    known, required = schedules.parameters(name)
    arguments = dict.fromkeys(required, 1)

    def build(**more: Any) -> object:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        return get_scheduler(name, optimizer, 1, 10, scheduler_specific_kwargs={**arguments, **more})

    if name in schedules.NO_ARGUMENTS:
        assert known == {}
        return
    if name == "reduce_lr_on_plateau":
        torch_takes = inspect.signature(torch.optim.lr_scheduler.ReduceLROnPlateau).parameters
        assert set(known) == torch_takes.keys() - {"optimizer"}
    with pytest.raises(TypeError, match="foo"):
        build(foo=1)
    if required:
        arguments.clear()
        with pytest.raises(TypeError, match=required[0]):
            build()


@pytest.mark.parametrize("model_type", targets.LINEAR)
def test_linear_layers(model_type: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        model_type, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=64, pad_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    assert adapter.linear_names(network) == list(targets.LINEAR[model_type])


def test_keys_of_deepspeed() -> None:
    """Each known key stands in its source, and what its configuration reads first of all is known."""
    import deepspeed

    folder = Path(deepspeed.__file__).parent
    source = "\n".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    assert [key for key in zero_extra.TOP_LEVEL if not re.search(rf"""["']{key}["']""", source)] == []
    from deepspeed.runtime import constants

    reads = (folder / "runtime" / "config.py").read_text(encoding="utf-8")
    names = set(re.findall(r"get_scalar_param\(\s*param_dict, ([A-Z_]+),", reads))
    assert {getattr(constants, name) for name in names} <= {*zero_extra.TOP_LEVEL}


def test_keys_of_zero_optimization() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = DeepSpeedZeroConfig.model_fields
    assert zero_extra.keys().keys() == {*fields, *(field.alias for field in fields.values() if field.alias)}
