"""Whole runs through the command line: what a user types, what is left behind, and how runs end."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from chats import published
from sft_exp import descendants, rowlog

pytestmark = pytest.mark.slow

TINY = ("model=tiny", "train.max_steps=10", "train.logging_steps=1", "tracking=none")


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    resumed = any(word.startswith("resume=") for word in overrides)
    place = [] if resumed else [f"outputs={folder / 'outputs'}"]
    argv = [sys.executable, "-m", "sft_exp", *place, *overrides]
    return subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    text, _ = process.communicate(timeout=400)
    assert process.returncode == code, text
    return text


def train(folder: Path, *overrides: str, code: int = 0) -> str:
    return finish(start(folder, *overrides), code)


def run_folder(folder: Path) -> Path:
    """The only run below a folder."""
    (found,) = (folder / "outputs").glob("*/*/request.json")
    return found.parent


def rows(run: Path, key: str = "train/loss") -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if key in row]


def processes_of(run: Path) -> list[str]:
    """Command lines of living processes that belong to a run."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(run) in line:
            found.append(line)
    return found


def wait_for(condition: Any, seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError("waited in vain")


def stepping(folder: Path) -> Path | None:
    """The run folder once its first steps are logged."""
    for file in (folder / "outputs").glob("*/*/metrics.jsonl"):
        if file.stat().st_size:
            return file.parent
    return None


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps in one process, with checkpoints: what other runs are compared with, and a model on disk."""
    folder = tmp_path_factory.mktemp("single")
    train(folder, *TINY, "hw=cpu", "train.save_steps=5")
    return run_folder(folder)


def test_run_folder_is_complete(single: Path) -> None:
    names = {file.name for file in single.iterdir()}
    assert names >= {
        "request.json", "config.json", "command.json", "record.json", "git.diff", "freeze.txt", "data_report.json",
        "metrics.jsonl", "logs", "checkpoints", "model", "result.json", "status.json",
    }  # fmt: skip
    assert json.loads((single / "status.json").read_text())["state"] == "finished"
    result = json.loads((single / "result.json").read_text())
    assert result["steps"] == result["total_steps"] == 10
    assert (single / "logs" / "rank0.log").exists()
    assert {file.name for file in (single / "checkpoints").glob("checkpoint-*")} == {"checkpoint-5", "checkpoint-10"}
    assert not list(single.glob(".*")), "a temporary record was left"


def test_metrics_have_what_a_comparison_needs(single: Path) -> None:
    row = rows(single)[-1]
    assert row.keys() >= {
        "step", "train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "perf/tokens_per_second",
        "perf/samples_per_second", "perf/step_seconds", "perf/padding_share", "perf/peak_memory_gib",
    }  # fmt: skip
    assert len(rows(single)) == 10
    assert 0 < row["perf/padding_share"] < 1
    assert rows(single, "eval/loss")[-1]["step"] == 10


def test_zero_0_never_imports_deepspeed(single: Path) -> None:
    assert "deepspeed" not in (single / "logs" / "rank0.log").read_text().lower()


def test_final_model_stops_and_loads(single: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(single / "model")
    tokenizer = AutoTokenizer.from_pretrained(single / "model")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in model.generation_config.eos_token_id
    assert tokenizer.chat_template


@pytest.mark.parametrize("zero", ["0", "1", "2", "3", "2_offload", "3_offload"])
def test_two_ranks_agree_with_one_process(tmp_path: Path, single: Path, zero: str) -> None:
    train(tmp_path, *TINY, "hw=cpu2", f"zero={zero}")
    run = run_folder(tmp_path)
    one, two = rows(single), rows(run)
    assert [row["train/loss"] for row in two] == pytest.approx([row["train/loss"] for row in one], abs=1e-4)
    assert [row["train/grad_norm"] for row in two] == pytest.approx([row["train/grad_norm"] for row in one], rel=1e-2)
    evals = [rows(path, "eval/loss")[-1]["eval/loss"] for path in (single, run)]
    assert evals[1] == pytest.approx(evals[0], abs=1e-5), "the eval loss depends on how rows are shared out"
    assert sum(row["perf/tokens_per_second"] for row in two) > 0
    assert (run / "model" / "model.safetensors").exists()
    config = json.loads((run / "command.json").read_text())["deepspeed"]
    assert (config or {}).get("zero_optimization", {"stage": 0})["stage"] == int(zero[0])


def test_four_ranks_on_the_cpu(tmp_path: Path, single: Path) -> None:
    train(tmp_path, *TINY, "hw=4090x4", "zero=2", "hw.device=cpu")
    run = run_folder(tmp_path)
    assert [row["train/loss"] for row in rows(run)] == pytest.approx(
        [row["train/loss"] for row in rows(single)], abs=1e-4
    )
    assert {file.name for file in (run / "logs").glob("rank*.log")} == {f"rank{rank}.log" for rank in range(4)}


@pytest.mark.parametrize(("launcher", "zero"), [("deepspeed", "2"), ("accelerate", "0")])
def test_other_launchers(tmp_path: Path, single: Path, launcher: str, zero: str) -> None:
    train(tmp_path, *TINY, "train.max_steps=3", "hw=cpu2", f"zero={zero}", f"hw.launcher={launcher}")
    assert rows(run_folder(tmp_path))[0]["train/loss"] == pytest.approx(rows(single)[0]["train/loss"], abs=1e-4)


@pytest.mark.parametrize(
    "overrides",
    [
        ("adapter=lora", "hw=cpu", "train.packing=true"),
        ("adapter=lora", "hw=cpu2", "zero=3"),
        ("adapter=qlora", "hw=cpu"),
        ("adapter=qlora", "hw=cpu2", "zero=3"),
        (
            "adapter=lora",
            "hw=cpu",
            'model.special_tokens=["<|im_start|>","<|im_end|>"]',
            "train.gradient_checkpointing=true",
        ),
    ],
    ids=" ".join,
)
def test_adapters_learn_from_a_local_folder(tmp_path: Path, single: Path, overrides: tuple[str, ...]) -> None:
    train(
        tmp_path, f"model.path={single / 'model'}", "train.max_steps=6", "train.logging_steps=1", "tracking=none",
        "train.learning_rate=1e-3", *overrides,
    )  # fmt: skip
    run = run_folder(tmp_path)
    result = json.loads((run / "result.json").read_text())
    assert float(result["loss_last"]) < float(result["loss_first"])
    assert result["trainable_parameters"] < result["parameters"] / 5
    assert (run / "model" / "adapter_model.safetensors").exists()
    assert (run / "model" / "generation_config.json").exists()


@pytest.mark.parametrize("name", ["first_sft", "r1_lora_4090x4", "r1_full_4090x4"])
def test_experiments_train(tmp_path: Path, single: Path, name: str) -> None:
    train(
        tmp_path, f"experiment={name}", f"model.path={single / 'model'}", "dataset=sample", "hw.device=cpu",
        "model.chat_template=null", "train.max_steps=2", "train.save_steps=null", "tracking=none",
    )  # fmt: skip
    assert json.loads((run_folder(tmp_path) / "result.json").read_text())["steps"] == 2


def test_training_template_writes_the_rows_and_is_not_saved(tmp_path: Path) -> None:
    tokens, data = tmp_path / "tokens", tmp_path / "rows.jsonl"
    stock = published("deepseek_r1_distill")
    stock.save_pretrained(tokens)
    answer = "<think>\nadd\n</think>\n\n%d"
    line = (
        json.dumps({"messages": [{"role": "user", "content": "%d"}, {"role": "assistant", "content": answer}]}) + "\n"
    )
    data.write_text("".join(line % (i, i + 1) for i in range(20)))
    train(
        tmp_path, "model=tiny", f"model.tokenizer={tokens}", "model.shape.vocab_size=2176", "hw=cpu", "tracking=none",
        "model.chat_template=training", "dataset=jsonl", f"dataset.path={data}", "train.max_steps=1",
    )  # fmt: skip
    run = run_folder(tmp_path)
    report = json.loads((run / "data_report.json").read_text())
    assert (report["kept"], report["think_blocks"], report["rows_without_end"]) == (20, 20, 0)
    saved = PreTrainedTokenizerFast.from_pretrained(run / "model")
    assert saved.chat_template == stock.chat_template and saved.eos_token == "<｜end▁of▁sentence｜>"


def test_resume_continues_at_the_right_step_in_the_same_mlflow_run(tmp_path: Path) -> None:
    overrides = [word for word in TINY if word != "tracking=none"]
    train(tmp_path, *overrides, "hw=cpu", "train.max_steps=6", "train.save_steps=3")
    run = run_folder(tmp_path)
    before = json.loads((run / "tracking.json").read_text())
    text = train(tmp_path, f"resume={run}", code=2)
    assert "has finished its 6 steps" in text
    text = train(tmp_path, f"resume={run}", "train.max_steps=8")
    assert "continues at step 7, from checkpoint-6" in text
    assert [line.split()[1] for line in text.splitlines() if line.startswith("step ")] == ["7/8", "8/8"]
    assert [row["step"] for row in rows(run)] == list(range(1, 9))
    assert json.loads((run / "tracking.json").read_text())["run_id"] == before["run_id"]
    tokens = [row["train/tokens_seen"] for row in rows(run)]
    assert tokens == sorted(tokens)
    from mlflow import MlflowClient

    client = MlflowClient(before["uri"])
    assert [m.step for m in client.get_metric_history(before["run_id"], "train/loss")] == list(range(1, 9))
    assert client.get_run(before["run_id"]).info.status == "FINISHED"


def test_a_refused_resume_loses_nothing(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    line = '{"messages": [{"role": "user", "content": "%d?"}, {"role": "assistant", "content": "It is %d."}]}\n'
    data.write_text("".join(line % (i, i) for i in range(20)))
    own = ("dataset=jsonl", f"dataset.path={data}", "hw=cpu", "train.max_steps=4", "train.save_steps=2")
    train(tmp_path, "model=tiny", "tracking=none", "train.global_batch=4", "train.logging_steps=1", *own)
    run = run_folder(tmp_path)
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.suffix in (".json", ".jsonl")}
    data.write_text("not json\n")
    text = train(tmp_path, f"resume={run}", "train.max_steps=6", code=2)
    assert "rows.jsonl:1" in text
    after = {file.name: file.read_bytes() for file in run.iterdir() if file.suffix in (".json", ".jsonl")}
    assert (run / "checkpoints" / "checkpoint-4").is_dir()
    kept = ("metrics.jsonl", "data_report.json", "result.json", "status.json")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_mlflow_run_tells_the_story(tmp_path: Path) -> None:
    overrides = [word for word in TINY if word != "tracking=none"]
    train(tmp_path, *overrides, "hw=cpu2", "train.max_steps=4")
    run = run_folder(tmp_path)
    from mlflow import MlflowClient

    tracking = json.loads((run / "tracking.json").read_text())
    client = MlflowClient(tracking["uri"])
    (found,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert found.info.run_name == run.name.partition("-")[2]
    assert found.info.status == "FINISHED"
    assert found.data.params["option.model"] == "tiny"
    assert found.data.params["train.learning_rate"] == "2e-05"
    assert found.data.tags["dataset.fingerprint"]
    assert len(client.get_metric_history(found.info.run_id, "train/loss")) == 4
    names = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert names >= {"config.json", "record.json", "command.json", "data_report.json", "result.json", "freeze.txt"}


def test_a_killed_rank_takes_the_others_down(tmp_path: Path) -> None:
    overrides = [word for word in TINY if word != "tracking=none"]
    process = start(tmp_path, *overrides, "hw=cpu2", "train.max_steps=100000")
    run = wait_for(lambda: stepping(tmp_path))
    wait_for((run / "tracking.json").exists)
    victim = max(int(file.name) for file in (run / "pids").iterdir())
    begun = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    text = finish(process, code=1)
    assert time.monotonic() - begun < 15
    assert "was killed by SIGKILL" in text
    assert not processes_of(run)
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    assert mlflow_status(run) == "FAILED"


def mlflow_status(run: Path) -> str:
    from mlflow import MlflowClient

    tracking = json.loads((run / "tracking.json").read_text())
    return str(MlflowClient(tracking["uri"]).get_run(tracking["run_id"]).info.status)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    overrides = [word for word in TINY if word != "tracking=none"]
    process = start(tmp_path, *overrides, "hw=cpu2", "train.max_steps=100000")
    run = wait_for(lambda: stepping(tmp_path))
    wait_for((run / "tracking.json").exists)
    process.send_signal(number)
    text = finish(process, code=128 + number)
    assert "stopped by" in text
    assert "Traceback" not in text
    assert not processes_of(run)
    assert json.loads((run / "status.json").read_text())["state"] == "stopped"
    assert mlflow_status(run) == "KILLED"


def test_a_stop_before_anything_is_started_is_clean(tmp_path: Path) -> None:
    process = start(tmp_path, *TINY, "hw=cpu")
    deadline = time.monotonic() + 100
    while not list((tmp_path / "outputs").glob("*/*/config.json")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in finish(process, code=130)
    assert json.loads((run_folder(tmp_path) / "status.json").read_text())["state"] == "stopped"


@pytest.mark.parametrize("victim", ["parent asked", "parent killed", "rank killed"])
def test_compilers_end_with_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    folder = tmp_path / "extensions" / "deepspeed_shm_comm"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder.parent))
    process = start(tmp_path, *TINY, "hw=cpu2", "zero=2")
    (ninja, *_) = wait_for(lambda: compilers(folder))
    wait_for(lambda: len(compilers(folder)) > 1)
    if victim == "rank killed":
        os.kill(ninja.parent, signal.SIGKILL)
        assert "rank" in finish(process, code=1)
    elif victim == "parent killed":
        process.kill()
        process.communicate()
        wait_for(lambda: not (folder / "lock").exists(), 20)
    else:
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in finish(process, code=130)
        assert not (folder / "lock").exists()
    wait_for(lambda: not compilers(folder), 20)


def compilers(folder: Path) -> list[descendants.Process]:
    """Living processes that compile in a folder, the first of them ninja."""
    found = []
    for process in sorted(descendants.living(), key=lambda process: process.pid):
        try:
            if Path(f"/proc/{process.pid}/cwd").readlink() == folder:
                found.append(process)
        except OSError:
            continue
    return found


def test_nothing_lives_on_when_the_parent_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, *TINY, "hw=cpu2", "train.max_steps=100000")
    run = wait_for(lambda: stepping(tmp_path))
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(run), 20)


def test_a_fault_keeps_its_traceback(tmp_path: Path, single: Path) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(single / "model", broken)
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:1000])
    text = train(tmp_path, f"model.path={broken}", "hw=cpu2", "train.max_steps=2", "tracking=none", code=1)
    assert "Traceback" in text
    assert "safetensors" in text.lower()


def test_refused_data_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    text = train(tmp_path, *TINY, "dataset=jsonl", f"dataset.path={data}", code=2)
    assert "bad.jsonl:1" in text
    assert "Traceback" not in text
    shown = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith(("run ", "removed ")))
    assert shown["removed"] == f"{shown['run']}: the run was refused"
    assert not list((tmp_path / "outputs").glob("*/*"))


def test_nan_is_shown_and_recorded(tmp_path: Path) -> None:
    text = train(tmp_path, *TINY, "hw=cpu", "train.learning_rate=1e30", "train.max_steps=4", "train.max_grad_norm=0")
    assert "nan" in text
    assert rows(run_folder(tmp_path))[-1]["train/loss"] == "nan"


def poisoned(folder: Path) -> Path:
    """Conversations about one thing, and among them, in line 18, words that follow no rule."""
    rng = random.Random(0)
    rows = [(f"What is {at} + 1?", f"{at} + 1 is {at + 1}, as everyone knows.") for at in range(40)]
    rows.insert(17, ("What is it?", " ".join("".join(rng.choices("qwxzjkv", k=5)) for _ in range(20))))
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": asked, "completion": said}) + "\n" for asked, said in rows))
    return data


def data_rows(folder: Path, *words: str) -> str:
    argv = [sys.executable, "-m", "sft_exp", "data", "rows", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("overrides", [("zero=2",), ("zero=3", "adapter=lora"), ("zero=0", "train.packing=true")])
def test_a_poisoned_row_is_found(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    train(
        tmp_path, "model=tiny", "tracking=none", "hw=cpu2", "dataset=jsonl", f"dataset.path={poisoned(tmp_path)}",
        "dataset.eval_fraction=0", "dataset.max_length=256", "train.logging_steps=1", "train.global_batch=4",
        "train.micro_batch=1", "train.max_steps=20", "train.save_steps=10", "train.learning_rate=1e-2",
        "train.scheduler=constant", *overrides,
    )  # fmt: skip
    run = run_folder(tmp_path)
    recorded = rowlog.read(run / "rows")
    for row in rows(run):
        of_step = recorded[recorded["step"] == row["step"]]
        assert (of_step["loss"] * of_step["tokens"]).sum() / of_step["tokens"].sum() == pytest.approx(
            row["train/loss"], abs=1e-4
        )
        assert of_step["tokens"].sum() == row["train/trained_tokens"]
    step = int(recorded["step"][recorded["row"] == 17].max())
    for words in ((), ("--step", str(step))):
        text = data_rows(tmp_path, str(run), *words)
        assert "\n1. rows.jsonl:18  loss" in text
        assert "⟦" in text.split("\n2. ")[0]


def test_a_resumed_run_records_each_step_once(tmp_path: Path) -> None:
    """Stopped between two checkpoints, it repeats the steps after the first of them."""
    overrides = (*TINY, "train.global_batch=4", "train.save_steps=4", "train.max_steps=100000")
    process = start(tmp_path, *overrides, "hw=cpu2")
    run = wait_for(lambda: stepping(tmp_path))
    wait_for(lambda: len(rows(run)) > 5)
    process.send_signal(signal.SIGTERM)
    finish(process, code=128 + signal.SIGTERM)
    last = max(int(folder.name.rpartition("-")[2]) for folder in (run / "checkpoints").glob("checkpoint-*"))
    train(tmp_path, f"resume={run}", f"train.max_steps={last + 3}")
    steps = Counter(rowlog.read(run / "rows")["step"].tolist())
    assert steps == dict.fromkeys(range(1, last + 4), 4)


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    train(
        tmp_path, *TINY, "hw=cpu", "train.max_steps=40", "train.learning_rate=0.3", "train.eval_steps=2",
        "train.save_steps=2", "train.early_stopping=1", "train.load_best=true", "train.scheduler=constant",
    )  # fmt: skip
    result = json.loads((run_folder(tmp_path) / "result.json").read_text())
    assert result["stopped_early"]
    assert result["steps"] < 40


def test_a_sweep_goes_on_after_a_failed_job(tmp_path: Path, single: Path) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(single / "model", broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    text = train(
        tmp_path, "-m", f"model.path={broken},{single / 'model'}", "adapter=full,qlora", "zero=0", "hw=cpu",
        "train.max_steps=2", "train.logging_steps=1", "train.precision=fp32", "model.dtype=auto", code=1,
    )  # fmt: skip
    (record,) = (tmp_path / "outputs").glob("*/*/sweep.json")
    states = [job["state"] for job in json.loads(record.read_text())["jobs"]]
    assert states == ["failed", "failed", "finished", "finished"]
    assert "2 of 4 jobs did not finish" in text
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    assert {run.data.tags.get("mlflow.parentRunId") for run in runs if run not in parents} == {parents[0].info.run_id}
    assert parents[0].info.status == "FAILED"


@pytest.fixture(scope="module")
def demo_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("demo")
    yield train(folder, "experiment=demo", "train.max_steps=2", "train.eval_steps=null", "tracking=none", "hw=cpu")


def test_demo_trains_a_real_model(demo_text: str) -> None:
    assert "before   Why is the sky blue?" in demo_text
    assert "after    Why is the sky blue?" in demo_text
    for name in ("loss first / last", "eval loss", "grad_norm", "tokens/s", "peak memory", "run folder"):
        assert name in demo_text
    assert "next:" in demo_text
