"""The documentation tells the truth: links lead somewhere, commands compose, and nothing that exists is left out."""

import dataclasses
import importlib.metadata
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composing import GROUPS, Compose, machine, options
from sft_exp import chat, check, cli, data_rows, explain, merge, schema, zero
from sft_exp.machine import Card
from sft_exp.request import flatten, to_plain
from sft_exp.resolve import resolve

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "sft_exp"
FILES = [ROOT / name for name in ("README.md", "README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md")]
FILES += sorted((ROOT / "docs").glob("*.md"))
DEFAULTS = flatten(to_plain(schema.Experiment()))
DEEPSPEED = Path(str(importlib.metadata.distribution("deepspeed").locate_file("deepspeed")))
OTHERS = {"dataset.fingerprint", "tracking.json"}
"""A tag and a file whose names look like configuration."""


def blocks(file: Path) -> list[tuple[str, str]]:
    """Language and text of each code block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", file.read_text(encoding="utf-8"), re.M | re.S)


def prose(file: Path) -> str:
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)


def command_lines() -> list[str]:
    """Every distinct command line of sft_exp in a code block."""
    lines = [line for file in FILES for kind, text in blocks(file) if kind == "bash" for line in text.splitlines()]
    return list(dict.fromkeys(line for line in lines if "python -m sft_exp" in line))


def commands() -> list[str]:
    """Those that compose something."""
    return [line for line in command_lines() if "--help" not in line and not about_a_run(line)]


def about_a_run(line: str) -> bool:
    """Whether the command has arguments of its own and composes nothing."""
    return any(f"-m sft_exp {' '.join(name)} " in f"{line} " for name in cli.ABOUT_RUNS)


def spans() -> Iterator[tuple[str, str]]:
    """File and text of each piece of code in a sentence."""
    for file in FILES:
        for span in re.findall(r"`([^`\n]+)`", prose(file)):
            yield file.name, span


def known(key: str) -> bool:
    return (
        key in DEFAULTS
        or key in OTHERS
        or key.startswith(explain.OPEN)
        or any(name.startswith(f"{key}.") for name in DEFAULTS)
    )


def written(folder: Path) -> None:
    """Write the files that YAML blocks show."""
    for file in FILES:
        for kind, text in blocks(file):
            if kind == "yaml":
                [name] = re.findall(r"^# (my_conf/\S+)$", text, re.M)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_links_lead_to_files(file: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(file))
    relative = [target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")]
    assert [target for target in relative if not (file.parent / target).exists()] == []


@pytest.mark.parametrize("command", commands())
def test_commands_compose(command: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(here)
    typed = shlex.split(command.partition("-m sft_exp")[2])
    _, arguments = cli.read_arguments(typed)
    monkeypatch.setattr(sys, "argv", ["sft_exp", *arguments])
    requests, _ = cli.compose(typed)
    assert requests


def test_commands_about_rows_parse() -> None:
    found = [line.partition("-m sft_exp data rows")[2] for line in command_lines()]
    typed = [shlex.split(words) for words in found if words]
    assert {data_rows.arguments(words).step for words in typed} == {120, None}


def test_commands_about_runs_parse() -> None:
    for name, arguments in (("chat", chat.arguments), ("merge", merge.arguments)):
        typed = [
            shlex.split(line.partition(f"-m sft_exp {name}")[2]) for line in command_lines() if f" {name} " in line
        ]
        assert len(typed) > 1
        assert {arguments(words).run for words in typed} == {"RUN"}


def test_fields_and_options_in_sentences_exist() -> None:
    wrong = []
    for file, span in spans():
        key, _, value = span.lstrip("+'").partition("=")
        dotted = re.fullmatch(r"[a-z_]+(\.\w+)+", key) and key.partition(".")[0] in GROUPS
        option = key in GROUPS and re.fullmatch(r"[\w.-]+", value)
        if (dotted and not known(key)) or (option and value not in options(key)):
            wrong.append(f"{file}: {span}")
    assert wrong == []


def test_every_field_is_explained_with_its_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `([^`]*)` \|", text, re.M))
    plain = {"True": "true", "False": "false", "None": "null"}
    shown = {key: plain.get(str(value), str(value)).replace("'", '"') for key, value in DEFAULTS.items()}
    assert rows == shown


def test_every_option_is_listed() -> None:
    texts = (ROOT / "docs" / "configuration.md", ROOT / "docs" / "models.md")
    text = "".join(file.read_text(encoding="utf-8") for file in texts)
    missing = [
        (group, name) for group in GROUPS if group != "train" for name in options(group) if f"`{name}`" not in text
    ]
    assert missing == []


def test_every_deepspeed_value_is_listed(compose: Compose) -> None:
    """The table of docs/deepspeed.md has every key and value of every stage, each with a name in DeepSpeed's source."""
    stages = ("1", "2", "3", "2_offload", "3_offload")
    made = {stage: flatten(_deepspeed(compose(f"zero={stage}").experiment.zero) or {}) for stage in stages}
    assert sorted({"0", *stages}) == options("zero")
    assert _deepspeed(compose("zero=0").experiment.zero) is None
    keys = list(dict.fromkeys(key for stage in ("2", "3_offload", "2_offload") for key in made[stage]))
    text = (ROOT / "docs" / "deepspeed.md").read_text(encoding="utf-8")
    table = text.partition("<!-- values -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    assert rows[0][1:6] == [f"`zero={stage}`" for stage in stages]
    assert sorted(row[0].strip("`") for row in rows[2:]) == sorted(keys)
    why = text.partition("\nWhy:\n")[2].partition("\n## ")[0]
    for key, *values, source in ((row[0].strip("`"), *row[1:]) for row in rows[2:]):
        shown = [json.dumps(made[stage][key]) if key in made[stage] else "-" for stage in stages]
        assert values == shown, key
        assert f"`{key}`" in why, key
        file, name = re.findall(r"`([^`]+)`", source)
        assert re.search(rf"\b{name}\b", (DEEPSPEED / file).read_text(encoding="utf-8")), source


def _deepspeed(settings: schema.Zero) -> dict[str, Any] | None:
    return zero.config(settings, precision=schema.Precision.bf16, micro=2, accumulation=4, clip=1.0)


def test_a_machine_of_ones_own_is_one_short_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every profile that the documentation shows: at most 15 lines; the whole one is checked on its machine."""
    written(here)
    shown = sorted((here / "my_conf" / "hw").glob("*.yaml"))
    assert "a6000x2" in [file.stem for file in shown]
    assert [file.name for file in shown if len(file.read_text().splitlines()) > 15] == []
    typed = ["--config-dir", "my_conf", "hw=a6000x2", "model=tiny", "tracking=none"]
    monkeypatch.setattr(sys, "argv", ["sft_exp", *typed])
    [request], _ = cli.compose(typed)
    card = Card(index=0, name="NVIDIA RTX A6000", capability=8.6, memory_gib=47.5)
    cards = [dataclasses.replace(card, index=index) for index in range(2)]
    right = dataclasses.replace(machine("4090"), cards=cards)
    experiment = resolve(request.experiment, right)
    assert (experiment.hw.processes, experiment.hw.devices, experiment.hw.threads) == (2, [0, 1], 8)
    assert check.check(experiment, right).problems == []
    wrong = machine("h200", 2)
    [line] = check.check(resolve(request.experiment, wrong), wrong).problems
    assert "hw=a6000x2 describes cards of compute capability 8.6" in line
    assert "use hw=h200x2" in line


def test_every_verdict_and_metric_is_explained() -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in SOURCE.glob("*.py"))
    reasons = set(re.findall(r'(?:BadRow\(|reason=|__init__\(|drop\([\w.]+, |append\()"([a-z]+(?:_[a-z]+)+)"', code))
    data = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert len(reasons) > 10
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in data] == []
    metrics = set(re.findall(r'"((?:train|perf|eval)/\w+)"', (SOURCE / "trainer.py").read_text(encoding="utf-8")))
    runs = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    assert len(metrics) > 15
    assert [name for name in sorted(metrics) if f"`{name}`" not in runs] == []


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_both_languages_say_the_same() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh.md"
    levels = [re.findall(r"^#+(?= )", prose(file), re.M) for file in (english, chinese)]
    assert levels[0] == levels[1]
    assert blocks(english) == blocks(chinese)
    links = [re.findall(r"\]\((\w[^)]*)\)", prose(file)) for file in (english, chinese)]
    assert sorted(set(links[0]) - {chinese.name}) == sorted(set(links[1]) - {english.name})
    assert chinese.name in links[0]
    assert english.name in links[1]
