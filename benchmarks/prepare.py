"""Preparing conversations: rows per second of sft_exp against TRL's SFTTrainer on the same file and tokenizer.

    python benchmarks/prepare.py --rows 200000 --processes 1 --pairs 3 --template qwen3

Both read a generated jsonl file and end with token ids and labels on disk; imports, model and tokenizer are left out of
the time. The runs alternate, each in a fresh process with an empty cache; the medians are compared.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORDS = 4000


def generate(path: Path, rows: int, seed: int = 1) -> None:
    """Conversations of one to three turns, 200 tokens in the middle."""
    dice = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(dice.choices(letters, range(26, 0, -1), k=dice.randint(2, 9))) for _ in range(WORDS)]
    with path.open("w") as file:
        for number in range(rows):
            turns = []
            for _ in range(dice.choice([1, 1, 1, 2, 3])):
                turns.append({"role": "user", "content": " ".join(dice.choices(words, k=dice.randint(5, 40))) + "?"})
                answer = " ".join(dice.choices(words, k=dice.randint(10, 120)))
                turns.append({"role": "assistant", "content": f"{answer} {number}."})
            file.write(json.dumps({"messages": turns}) + "\n")


def tokenizer(folder: str, template: str) -> Any:
    """A tokenizer with one of the chat templates that TRL ships."""
    import importlib.util

    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast.from_pretrained(folder)
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.origin is not None
    made.chat_template = (Path(spec.origin).parent / "chat_templates" / f"{template}.jinja").read_text()
    marks = {"llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]}
    made.add_tokens(marks.get(template, []), special_tokens=True)
    if template == "llama3":
        made.bos_token, made.eos_token = "<|begin_of_text|>", "<|eot_id|>"
    return made


def ours(path: Path, folder: str, template: str, processes: int, cache: Path) -> float:
    """Seconds of sft_exp."""
    from sft_exp import dataset
    from sft_exp.schema import Dataset

    made = tokenizer(folder, template)
    config = Dataset(path=str(path), num_proc=processes, eval_fraction=0)
    started = time.perf_counter()
    report = dataset.prepare(config, ["benchmark"], lambda: made, cache=cache)
    assert report.kept, report
    return time.perf_counter() - started


def theirs(path: Path, folder: str, template: str, processes: int, cache: Path) -> float:
    """Seconds of TRL's SFTTrainer, from the file to its prepared rows."""
    import datasets
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from trl import SFTConfig, SFTTrainer

    made = tokenizer(folder, template)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(made), num_key_value_heads=2, **shape))
    args = SFTConfig(
        output_dir=str(cache / "out"), assistant_only_loss=True, max_length=1024, dataset_num_proc=processes,
        use_cpu=True, bf16=False, report_to="none", eos_token=made.eos_token,
    )  # fmt: skip
    started = time.perf_counter()
    rows = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache))
    trainer = SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=made)
    assert "input_ids" in trainer.train_dataset.column_names
    return time.perf_counter() - started


def timed(which: str, path: Path, options: argparse.Namespace) -> float:
    """Seconds of one side in a fresh process with an empty cache."""
    cache = Path(tempfile.mkdtemp(prefix="benchmark-"))
    try:
        code = f"import prepare, pathlib; print('seconds', prepare.{which}(pathlib.Path({str(path)!r}), "
        code += f"{options.tokenizer!r}, {options.template!r}, {options.processes}, pathlib.Path({str(cache)!r})))"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, check=True, capture_output=True, text=True
        )
        return float(done.stdout.split("seconds")[-1])
    finally:
        shutil.rmtree(cache)


def main() -> None:
    """Run pairs and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    shipped = Path(__file__).parents[1] / "src" / "sft_exp" / "assets" / "tokenizer"
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--template", default="qwen3", help="one of TRL's chat templates, such as qwen3 or llama3")
    parser.add_argument("--tokenizer", default=str(shipped), help="folder of the tokenizer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversations.jsonl"
        generate(path, options.rows)
        pairs = [(timed("ours", path, options), timed("theirs", path, options)) for _ in range(options.pairs)]
    for name, seconds in zip(("sft_exp", "TRL"), zip(*pairs, strict=True), strict=True):
        print(
            f"{name:<8}{options.rows / statistics.median(seconds):>8,.0f} rows/s   {[round(s, 1) for s in seconds]} s"
        )
    print(f"ratio   {statistics.median(other / own for own, other in pairs):>8.2f}")


if __name__ == "__main__":
    main()
