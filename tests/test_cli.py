"""The command line: what is understood, what is refused and how, and that asking costs nothing.

Refusals run through `cli.main` in this process, a few also as the command a user types.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sft_exp
from sft_exp import cli, schema, words
from sft_exp.errors import ConfigError

SOURCE = Path(sft_exp.__file__).resolve().parents[1]
HEAVY = ("torch", "transformers", "trl", "peft", "mlflow", "deepspeed", "datasets", "accelerate", "numpy", "pyarrow")
Refuse = Callable[..., list[str]]

CASES = {
    "option that is not there": ("model=qwen05b", ["model=qwen05b", "Did you mean qwen0.5b?"]),
    "misspelt key": ("train.lrr=1", ["train.lrr", "Did you mean train.learning_rate?"]),
    "text for a number": ("train.learning_rate=abc", ["train.learning_rate=abc", "number"]),
    "stage that is not there": ("zero=4", ["zero=4", "3_offload"]),
    "no path": ("dataset=jsonl", ["dataset.path"]),
    "no file": ("dataset=jsonl dataset.path=/not/there.jsonl", ["/not/there.jsonl"]),
    "no weights": ("model.path=folder", ["model.path", "folder", "no weights"]),
    "does not divide": ("train.global_batch=7 hw=cpu2", ["train.global_batch=7", "6 or 8"]),
    "code without a commit": ("model.trust_remote_code=true", ["model.trust_remote_code", "model.revision"]),
    "code under a branch": ("model.trust_remote_code=true model.revision=main", ["model.revision=main"]),
    "added key": ("+train.foo=1", ["train.foo"]),
    "added key at the root": ("+foo=1", ["foo"]),
    "added known key": ("+train.seed=1", ["train.seed"]),
    "key of one's own": ("train.extra.adam_beta1=0.8", ["+train.extra.adam_beta1=VALUE"]),
    "value that is no choice": ("train.precision=bf17", ["train.precision=bf17", "Did you mean bf16?", "fp16"]),
    "one value for a list": ("hw.devices=3", ["hw.devices"]),
    "misspelt group": ("modle=x", ["modle", "Did you mean model?"]),
    "experiment that is not there": ("experiment=nope", ["experiment=nope", "first_sft"]),
    "bracket left open": ("train.sample_prompts=[a", ["train.sample_prompts=[a", "quotes"]),
    "two equal signs": ("train.seed==,,", ["train.seed==,,", "quotes"]),
    "name used elsewhere": ("train.warmup_ratio=0.1", ["train.warmup_ratio", "train.warmup "]),
    "not a command": ("tarin model=tiny", ["'tarin'", "train, plan, launch-command, data, doctor, ui"]),
    "group without an option": ("model=null", ["GROUP=OPTION", "NoneType"]),
    "comma without -m": ("train.seed=1,2", ["train.seed=1,2", "'train.seed=\"1,2\"'", "add -m"]),
    "options without -m": ("plan model=tiny,qwen0.5b", ["model=tiny,qwen0.5b", "choose one", "add -m"]),
    "flag of another tool": ("plan model=tiny --max_seq_length 8", ["--max_seq_length", "dataset.max_length"]),
    "short flag of another tool": ("model=tiny -lr 8", ["-lr", "train.learning_rate"]),
    "flag with an equal sign": ("model=tiny --lora-rank=8", ["--lora-rank", "adapter.r"]),
    "misspelt flag": ("--multrun model=tiny", ["--multrun", "--multirun"]),
    "flag without its value": ("plan --config-dir", ["--config-dir takes a value", "--config-dir FOLDER"]),
    "flag in place of a value": ("plan --config-dir --resolve", ["--config-dir takes a value"]),
    "flag with another value": ("--cfg jobs", ["--cfg jobs", "--cfg job"]),
    "folder that is not there": ("--config-dir=nowhere model=tiny", ["--config-dir=", "nowhere is not a folder"]),
    "command at the end": ("model=tiny plan", ["the command comes first", "python -m sft_exp plan"]),
    "word without an equal sign": ("plan train.seed", ["train.seed is no override", "KEY=VALUE"]),
    "text cut in two": ("plan dataset.path=行 1.jsonl", ["1.jsonl", "'dataset.path=\"行 1.jsonl\"'"]),
    "text of other letters": ("plan name=中文", ["name=中文", "'name=\"中文\"'"]),
    "text with brackets": ("plan dataset.path=a(1).jsonl", ["'dataset.path=\"a(1).jsonl\"'"]),
    "list of other letters": ("train.sample_prompts=[什么,b]", ['\'train.sample_prompts=["什么","b"]\'']),
    "attention that is not there": ("model=tiny hw=cpu hw.attention=[flash]", ["hw.attention=['flash']", "sdpa"]),
    "list of options": ("plan zero=[0,1]", ["zero=[0,1] chooses no option", "zero=NAME,NAME with -m"]),
    "no option": ("plan model=", ["model= chooses no option"]),
    "no key": ("plan =3", ["'=3' is no override"]),
    "range without -m": ("plan train.seed=range(1,3)", ["train.seed=range(1,3)", "add -m"]),
    "null for a number": ("plan train.seed=null", ["train.seed=null is not possible"]),
    "number for a mapping": ("plan train.extra=3", ["train.extra takes a mapping"]),
    "list for a mapping": ("plan dataset.columns=[a]", ["dataset.columns takes a mapping"]),
    "key taken away": ("plan ~train.seed", ["train.seed cannot be taken away"]),
    "unknown key taken away": ("plan ~train.sed", ["there is no train.sed", "train.seed"]),
    "key with an @": ("plan +tracking.tags.a@b=1", ["+tracking.tags.a@b=1 has an @"]),
    "group with an @": ("plan model@x=tiny", ["model@x has an @"]),
    "other run again": ("--experimental-rerun x", ["resume=RUN_FOLDER"]),
    "option added twice": ("plan +model=tiny", ["model is chosen already", "without a +"]),
    "plan of a run that is not there": ("plan resume=nowhere", ["resume=nowhere is no run folder"]),
    "interpolation": ("name=${nope}", ["nope"]),
    "field that a part does not have": ("+dataset.mixture.a.pth=x", ["dataset.mixture.a.pth"]),
    "text for a part's number": ("+dataset.mixture.a.weight=many", ["dataset.mixture.a.weight=many", "number"]),
    "part without a field": ("+dataset.mixture.a=x.csv", ["+dataset.mixture.a.path=FILE"]),
    "part without a plus": ("dataset.mixture.a.path=x", ["dataset.mixture.a", "+"]),
    "number for a name": ("hw=4090", ["GROUP=OPTION", "int"]),
}


@pytest.fixture
def refuse(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Sentences of a refused command line, which leaves nothing behind."""
    folder = here / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    before = sorted(here.rglob("*"))

    def call(*argv: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["sft_exp", *argv])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        assert ended.value.code == 2, output.err
        assert sorted(here.rglob("*")) == before
        lines = output.err.splitlines()
        assert lines
        assert all(line.startswith("sft_exp: ") for line in lines), output.err
        return lines

    return call


def command(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env={**os.environ, "PYTHONPATH": str(SOURCE), **env},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("typed", "words"), CASES.values(), ids=CASES.keys())
def test_mistake(refuse: Refuse, typed: str, words: list[str]) -> None:
    [line] = refuse(*typed.split(" "))
    assert all(word in line for word in words), line


def test_parts_of_a_mixture_are_added_field_by_field(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [
        "dataset=mixture", "+dataset.mixture.chat.path=[a.jsonl,b.csv]", "+dataset.mixture.chat.weight=3",
        "+dataset.mixture.r1-web={path:sample:sample.jsonl,limit:5}", "dataset.mixture.r1-web.weight=0.5",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["sft_exp", *cli.read_arguments(typed)[1]])
    [request], _ = cli.compose(typed)
    assert request.experiment.dataset.mixture == {
        "chat": schema.Part(path=["a.jsonl", "b.csv"], weight=3.0),
        "r1-web": schema.Part(path="sample:sample.jsonl", limit=5, weight=0.5),
    }
    assert request.argv == typed


def test_precision_that_the_profile_cannot(refuse: Refuse) -> None:
    """With a second sentence where no V100 is there."""
    lines = refuse("hw=v100", "train.precision=bf16")
    assert "train.precision=bf16" in lines[0]
    assert "hw=v100" in lines[0]


def test_disk_is_full(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounting a small disk needs rights, so the free space is what is claimed."""
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=64 * 1024))
    [line] = refuse("outputs=elsewhere", "model=qwen0.5b", "hw=cpu")
    assert "elsewhere" in line
    assert "0.0 GiB free" in line


def test_outputs_in_a_file(refuse: Refuse) -> None:
    [line] = refuse("outputs=folder/config.json/runs")
    assert "folder/config.json" in line


def test_all_problems_at_once(refuse: Refuse) -> None:
    lines = refuse("hw=cpu2", "train.global_batch=7", "zero.stage=9", "train.scheduler=cosin", "+train.extra.foo=1")
    assert len(lines) == 4
    assert all(any(word in line for line in lines) for word in ("=7", "zero.stage=9", "cosine", "train.extra.foo"))
    lines = refuse("+train.foo=1", "+train.bar=2")
    assert ["train.foo" in lines[0], "train.bar" in lines[1]] == [True, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# @package _global_\ntrain:\n  lrr: 1\n", ["train.lrr", "mine", "Did you mean"]),
        ("# @package _global_\ntrain:\n  learning_rate: fast\n", ["train.learning_rate=fast", "number"]),
        ("# @package _global_\ntrain:\n  precision: bf17\n", ["train.precision=bf17"]),
        ("# @package _global_\ntrain: [1\n", ["mine.yaml, line 3", "is no YAML", "brackets"]),
        ("# @package _global_\ntrain:\n\tseed: 1\n", ["mine.yaml, line 3", "is no YAML", "tabs"]),
        ("# @package _global_\nname: a\nname: b\n", ["mine.yaml, line 3", "second time"]),
        ("# @package _global_\ndefaults:\n  - override /zero: 2\n", ['zero: "2"']),
        ("# @package _global_\ndefaults:\n  - override /model: qwen05b\n", ["model=qwen05b", "qwen0.5b"]),
        ("train:\n  seed: 1\n", ["experiment/mine.yaml", "# @package _global_"]),
        ("defaults:\n  - override /model: tiny\n", ["experiment/mine.yaml", "# @package _global_"]),
        ("# @package _global_\ndefaults:\n  - /model: tiny\n", ["model is chosen already", "override /model: tiny"]),
        ("# @package _global_\ndefaults:\n  - override /modle: tiny\n", ["modle", "experiment/mine.yaml", "model?"]),
        ("# @package _global_\ndefaults:\n  - frist_sft\n", ["experiment/mine.yaml", "Did you mean first_sft?"]),
        ("# @package _global_\n- a\n", ["experiment/mine.yaml holds a list"]),
        ("# @package _global_\ntrain:\n  - a\n", ["experiment/mine.yaml holds a list", "train"]),
        ("# @package _global_\n", ["experiment/mine.yaml is empty"]),
    ],
    ids=[
        "key",
        "value",
        "choice",
        "syntax",
        "tab",
        "key twice",
        "bare stage",
        "option",
        "no package line",
        "no package line above defaults",
        "no override",
        "group",
        "experiment",
        "list",
        "list in a group",
        "empty",
    ],
)
def test_mistake_in_a_file_of_the_user(refuse: Refuse, tmp_path: Path, text: str, words: list[str]) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(text)
    [line] = refuse(f"--config-dir={folder.parent}", "experiment=mine")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["mine.yaml is empty"]),
        ("# a comment\n", ["mine.yaml is empty"]),
        ("- a\n", ["model/mine.yaml holds a list", "NAME: VALUE"]),
        ("shape: 3\n", ["model/mine.yaml holds a single value", "shape"]),
        ("defaults:\n  - tinny\nname: x\n", ["model/mine.yaml starts from model=tinny", "Did you mean tiny?"]),
        ("defaults:\n  - modl: tiny\nname: x\n", ["model/mine.yaml", "override /GROUP: NAME"]),
        ("defaults: tiny\n", ["model/mine.yaml", "no list"]),
        ("defaults:\n  - 3\n", ["no list of names"]),
        ("name: \xff\n", ["model/mine.yaml is no UTF-8"]),
    ],
    ids=["empty", "comment", "list", "value", "base", "other group", "one default", "number", "encoding"],
)
def test_mistake_in_an_option_of_the_user(refuse: Refuse, tmp_path: Path, text: str, words: list[str]) -> None:
    folder = tmp_path / "mine" / "model"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_bytes(text.encode("latin-1"))
    [line] = refuse("plan", f"--config-dir={folder.parent}", "model=mine")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("dataset.role_map=x", ["write +dataset.role_map.KEY=VALUE"]),
        ("dataset.mixture.chat.path=a.jsonl", ["write +dataset.mixture.chat.path=FILE"]),
        ("+dataset.mixture.chat.path=a=b.jsonl", ["so write '+dataset.mixture.chat.path=\"a=b.jsonl\"'"]),
        ("+dataset.mixture.chat={path:a.jsonl,wieght:3}", ["Did you mean weight?", "A part has path"]),
        ("+dataset.mixture.数据.path=a.jsonl", ["ASCII", "YAML file"]),
        ("dataset.path=${oops}.jsonl", ["holds ${oops}", "write \\${oops}"]),
    ],
)
def test_mistake_in_a_word_about_data(refuse: Refuse, typed: str, words: list[str]) -> None:
    [line] = refuse("plan", "model=tiny", typed)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("typed", ["name=中文 name", "name=a=b", "name=it's", "name='x", 'name=a"b(c', "name=a(b\\"])
def test_the_quoting_that_is_told_works(refuse: Refuse, monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    [line] = refuse("plan", typed)
    told = line.partition("so write ")[2].rstrip(".")
    [word] = shlex.split(told)
    monkeypatch.setattr(sys, "argv", ["sft_exp", word])
    [request], _ = cli.compose([word])
    assert request.experiment.name == typed.partition("=")[2]


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sft_exp", "--version"])
    cli.main()
    assert re.fullmatch(r"sft_exp (\d+\.\d+\.\d+\S*|\(not installed\))\n", capsys.readouterr().out)


def test_flags_are_those_of_hydra() -> None:
    from hydra._internal.utils import get_args_parser

    actions = get_args_parser()._actions
    assert set(words.FLAGS) == {flag for action in actions for flag in action.option_strings}
    with_value = {flag for action in actions if action.nargs is None for flag in action.option_strings}
    assert words.WITH_VALUE.keys() == with_value


def test_files_of_the_user_are_used(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine" / "model"
    folder.mkdir(parents=True)
    (folder / "ours.yaml").write_text("defaults:\n  - tiny\n\nname: ours\n")
    argv = [f"--config-dir={folder.parent}", "model=ours"]
    monkeypatch.setattr(sys, "argv", ["sft_exp", *argv])
    [request], _ = cli.compose(argv)
    assert (request.experiment.model.name, request.experiment.model.shape.hidden_size) == ("ours", 128)
    assert request.sources == [str(cli.conf_dir()), str(folder.parent)]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("train.lrr=1,2", ["train.lrr"]),
        ("train.precision=fp32,bf17", ["train.precision=bf17"]),
        ("model=tiny,qwen05b", ["model=qwen05b"]),
        ("hw=cpu2 train.global_batch=7,9", ["train.global_batch=7", "train.global_batch=9"]),
    ],
)
def test_mistake_in_a_job_of_a_sweep(refuse: Refuse, typed: str, words: list[str]) -> None:
    lines = refuse("-m", *typed.split(" "))
    assert len(lines) == len(words)
    assert all(any(word in line for line in lines) for word in words), lines


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("zero=2", "zero='2'"),
        ("zero=0,2,3", "zero='0','2','3'"),
        ("zero=0,2_offload", "zero='0',2_offload"),
        ("zero=2_offload", "zero=2_offload"),
        ("zero='2'", "zero='2'"),
        ("zero.stage=2", "zero.stage=2"),
        ("nonzero=2", "nonzero=2"),
        ("train.seed=2", "train.seed=2"),
        ("zero=", "zero="),
    ],
)
def test_quote_zero(typed: str, expected: str) -> None:
    assert cli.quote_zero(typed) == expected


@pytest.mark.parametrize(
    ("argv", "command", "arguments"),
    [
        ([], "train", ["experiment=demo"]),
        (["train"], "train", ["experiment=demo"]),
        (["plan"], "plan", ["experiment=demo"]),
        (["ui"], "ui", []),
        (["plan", "zero=2"], "plan", ["zero='2'"]),
        (["-m", "zero=0,1"], "train", ["-m", "zero='0','1'"]),
        (["--help"], "train", ["--help"]),
    ],
)
def test_read_arguments(argv: list[str], command: str, arguments: list[str]) -> None:
    assert cli.read_arguments(argv) == (command, arguments)


def test_read_arguments_refuses_other_commands() -> None:
    with pytest.raises(ConfigError, match="'frobnicate' is no command"):
        cli.read_arguments(["frobnicate"])


def test_help_is_quick_and_light(here: Path) -> None:
    code = f"""
import sys
from sft_exp.cli import main
sys.argv = ["sft_exp", "--help"]
try:
    main()
finally:
    print("heavy:", [name for name in {HEAVY} if name in sys.modules])
"""
    started = time.monotonic()
    done = command("-c", code, cwd=here)
    seconds = time.monotonic() - started
    print(f"--help took {seconds:.2f} s")
    assert done.returncode == 0, done.stderr
    assert "heavy: []" in done.stdout
    commands = [f"python -m sft_exp {name} " for name in cli.NAMES if name != "train"]
    for word in ("experiment", "qwen0.5b", "3_offload", *commands):
        assert word in done.stdout
    assert seconds < 3
    assert list(here.iterdir()) == []


def test_configuration_is_shown(here: Path) -> None:
    done = command("-m", "sft_exp", "zero=2", "--cfg", "job", "--resolve", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "stage: 2" in done.stdout
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "word"),
    [
        ("model=qwen05b", "Did you mean qwen0.5b?"),
        ("+train.foo=1", "train.foo"),
        ("dataset=jsonl", "dataset.path"),
        ("-m train.precision=fp32,bf17", "bf17"),
    ],
)
def test_mistake_as_typed(here: Path, typed: str, word: str) -> None:
    done = command("-m", "sft_exp", *typed.split(), cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("sft_exp: ")
    assert word in line
    assert list(here.iterdir()) == []


def test_flags_may_stand_anywhere() -> None:
    typed = ["model=tiny", "--config-dir", "mine", "train.seed=1"]
    assert cli.read_arguments(typed) == ("train", ["--config-dir", "mine", "model=tiny", "train.seed=1"])
    assert cli.read_arguments(["~name", "--info", "defaults"]) == ("train", ["--info", "defaults", "~name"])


def test_multirun_flag_may_stand_anywhere() -> None:
    assert cli.read_arguments(["model=tiny", "-m", "zero=0,2"]) == ("train", ["-m", "model=tiny", "zero='0','2'"])
