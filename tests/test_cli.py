"""The command line: what is understood, what is refused and how, and that asking costs nothing.

Refusals run through `cli.main` in this process, a few also as the command a user types.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sft_exp
from sft_exp import cli, schema
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
    "not a command": ("tarin model=tiny", ["'tarin'", "train, plan, data, doctor, ui"]),
    "group without an option": ("model=null", ["GROUP=OPTION", "NoneType"]),
    "comma without -m": ("train.seed=1,2", ["train.seed"]),
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
        ("# @package _global_\ntrain: [1\n", ["mine.yaml"]),
        ("# @package _global_\ndefaults:\n  - override /zero: 2\n", ['zero: "2"']),
        ("# @package _global_\ndefaults:\n  - override /model: qwen05b\n", ["model=qwen05b", "qwen0.5b"]),
        ("train:\n  seed: 1\n", ["experiment/mine.yaml"]),
    ],
    ids=["key", "value", "choice", "syntax", "bare stage", "option", "no package line"],
)
def test_mistake_in_a_file_of_the_user(refuse: Refuse, tmp_path: Path, text: str, words: list[str]) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(text)
    [line] = refuse(f"--config-dir={folder.parent}", "experiment=mine")
    assert all(word in line for word in words), line


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
    for word in ("experiment", "qwen0.5b", "3_offload", "python -m sft_exp plan"):
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


def test_multirun_flag_may_stand_anywhere() -> None:
    assert cli.read_arguments(["model=tiny", "-m", "zero=0,2"]) == ("train", ["-m", "model=tiny", "zero='0','2'"])
