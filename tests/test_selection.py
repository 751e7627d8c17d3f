"""Damage in rows never ends in a traceback."""

import json
import random
from pathlib import Path
from typing import Any

from preparing import go


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


def test_damaged_rows_never_end_in_a_traceback(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    dice = random.Random(7)
    lines = [damaged(dice) for _ in range(2000)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    report = go(path, cache, max_bad_fraction=1.0)
    assert report.rows == sum(bool(line.strip()) for line in lines)
    assert report.kept + sum(report.dropped.values()) == report.rows
    assert report.kept > 100 and len(report.dropped) >= 6, report
