"""Damage in rows never ends in a traceback."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from preparing import go
from sft_exp.errors import ConfigError


def damaged(dice: random.Random) -> str:
    """One line: a good row, mostly harmed in one of many ways."""
    text = dice.choice(
        ["hi", "你好", "🌊", "", "  ", "<|im_end|>", "<think>a</think>b", "\\ud83d", "a\\u0000b", "x" * 300]
    )
    role = dice.choice(["user", "human", "assistant", "gpt", "tool", "system", "moderator", "A B", ""])
    broken: list[Any] = [None, 7, 1e400, True, [], {}, [text], {"a": [text]}, [{"type": "text", "text": text}], text]
    odd = dice.choice(broken)
    turns = [{"role": "user", "content": f"{dice.random()}"}, {"role": "assistant", "content": text or "fine"}]
    call = {"function": {"name": dice.choice(["f", None]), "arguments": odd}}
    turns.insert(
        dice.randrange(3), {"role": role, "content": dice.choice([text, odd]), "tool_calls": dice.choice([[call], odd])}
    )
    row: dict[str, Any] = dice.choice(
        [
            {"messages": turns},
            {"messages": odd},
            {"messages": json.dumps(turns)[: dice.randrange(200)]},
            {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": odd}]},
            {"conversations": [{"from": "function_call", "value": odd}, odd]},
            {"instruction": odd, "input": dice.choice([odd, text]), "output": text},
            {"query": text, "response": f"{dice.random()}", "history": dice.choice([odd, [[text, text]]])},
            {"prompt": text, "completion": odd, "system": odd},
            {"text": odd},
            {"messages": turns, "tools": odd, "system": odd},
            {"odd": odd},
        ]
    )
    line = json.dumps(row, ensure_ascii=dice.random() < 0.5).replace("\\\\u", "\\u")
    cut = dice.randrange(len(line))
    return dice.choice([line, line, line, line[:cut], line[:cut] + dice.choice('"{}[],\\') + line[cut:]])


def spoiled(line: bytes, dice: random.Random) -> bytes:
    """Bytes of the line, one time in ten with random ones in it, one in a hundred nothing else."""
    if dice.random() < 0.01:
        return dice.randbytes(dice.randrange(1, 200))
    if dice.random() < 0.1:
        at = dice.randrange(len(line) + 1)
        return line[:at] + dice.randbytes(3) + line[at + dice.randrange(3) :]
    if dice.random() < 0.002:
        return b'{"text": "' + b"long " * 20_000 + b'"}'
    if dice.random() < 0.005:
        return b'{"messages": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    return line


def encoded_lines(count: int, seed: int) -> list[bytes]:
    dice = random.Random(seed)
    lines = (spoiled(damaged(dice).encode(errors="surrogatepass"), dice) for _ in range(count))
    return [line.replace(b"\n", b" ") for line in lines]


def test_damaged_rows_never_end_in_a_traceback(tmp_path: Path) -> None:
    """Ten thousand rows; each is kept or dropped with a reason, and none is lost."""
    lines = encoded_lines(10_000, seed=7)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    report = go(path, tmp_path / "cache", max_bad_fraction=1.0)
    assert report.rows == sum(bool(line.decode(errors="surrogateescape").strip()) for line in lines)
    assert report.kept + sum(report.dropped.values()) == report.rows
    assert report.kept > 500 and len(report.dropped) >= 7, report.dropped
    assert report.train_rows + report.eval_rows == report.kept


@pytest.mark.parametrize("suffix", ["json", "csv", "json.gz"])
def test_damaged_files_of_other_kinds_are_read_or_refused(tmp_path: Path, suffix: str) -> None:
    for seed in range(30):
        content = b",\n".join(encoded_lines(5, seed))
        path = tmp_path / f"{seed}.{suffix}"
        content = b"text\n" + content if suffix == "csv" else b"[" + content + b"]"
        path.write_bytes(gzip.compress(content)[: len(content) - seed % 2] if suffix == "json.gz" else content)
        try:
            report = go(path, tmp_path / "cache", max_bad_fraction=1.0)
        except ConfigError as error:
            assert all(problem.strip().endswith(".") for problem in error.problems), error
        else:
            assert report.kept + sum(report.dropped.values()) == report.rows > 0
