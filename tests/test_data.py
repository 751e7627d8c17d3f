"""`python -m sft_exp data`: the report without a run."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from preparing import DATA
from sft_exp import data_report, page, prepare
from sft_exp.cli import start
from sft_exp.errors import ConfigError

EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text())


def data(folder: Path, *overrides: str) -> None:
    start(["data", "model=tiny", f"outputs={folder / 'outputs'}", *overrides])


def written(folder: Path) -> dict[str, Any]:
    (file,) = (folder / "outputs").rglob("data_report.json")
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFT_EXP_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", EXPECTED)
def test_case_through_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = EXPECTED[name]
    overrides = ["dataset=jsonl", f"dataset.path={DATA / name}"]
    overrides += [f"dataset.{key}={value}" for key, value in case.get("options", {}).items()]
    if case["verdict"] == "accept":
        data(tmp_path, *overrides)
        assert "next:" in capsys.readouterr().out
    else:
        with pytest.raises(ConfigError) as caught:
            data(tmp_path, *overrides)
        assert all(text in str(caught.value) for text in case.get("must_name", [])), caught.value
    if "kept" in case:
        report = written(tmp_path)
        assert (report["rows"], report["kept"]) == (case["rows"], case["kept"])
        assert {key: len(lines) for key, lines in case.get("dropped", {}).items()} == report["dropped"]
        assert {key: len(lines) for key, lines in case.get("repaired", {}).items()} == report["repaired"]


def test_a_refused_set_still_has_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError):
        data(tmp_path, "dataset=jsonl", f"dataset.path={DATA / 'null_content.jsonl'}")
    assert "empty_content: 2 rows" in capsys.readouterr().out
    (html,) = (tmp_path / "outputs").rglob("data_report.html")
    assert "Nothing is trained on this" in html.read_text() and "null_content.jsonl:2" in html.read_text()


def test_sample_report_says_what_a_person_wants_to_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data(tmp_path, "dataset=sample")
    out = capsys.readouterr().out
    for label in ("rows", "split", "formats", "languages", "answers", "length", "trained", "end", "padding"):
        assert re.search(rf"^{label} ", out, re.MULTILINE), label
    report = written(tmp_path)
    assert set(report["languages"]) >= {"en", "zh"} and 0.3 < report["languages"]["zh"] < 0.5
    assert sum(report["turns"].values()) == report["kept"] == 447
    assert sum(count for _, count in report["histogram"]) == 447
    assert 0 < report["batches"]["packed"] < report["batches"]["padded"] < 1
    assert "⟦" in out and "In short:" in out


def test_second_call_finds_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data(tmp_path, "dataset=sample")
    monkeypatch.setattr("sft_exp.build.build", lambda *_: pytest.fail("worked again"))
    monkeypatch.setattr("sft_exp.tokenizer.load_tokenizer", lambda *_: pytest.fail("loaded the tokenizer"))
    data(tmp_path, "dataset=sample", "train.micro_batch=2", "train.packing=true")


def test_page_escapes_what_rows_say(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "<script>alert(1)</script>", "answer": "<b>no</b> & so on"}) + "\n")
    data(tmp_path, "dataset=jsonl", f"dataset.path={path}")
    (html,) = (tmp_path / "outputs").rglob("data_report.html")
    text = html.read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text and "&lt;b&gt;no" in text
    assert re.search(r'<span class="trained">[^<]*no', text)


def test_page_marks_the_lengths_that_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"question": f"{n}?", "answer": "yes " * (3000 if n == 7 else 20)} for n in range(400)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data(tmp_path, "dataset=jsonl", f"dataset.path={path}")
    (html,) = (tmp_path / "outputs").rglob("data_report.html")
    bars = re.findall(r'<div( class="over")? style="height: [\d.]+%" title="up to', html.read_text())
    assert [bool(over) for over in bars] == [False] * (len(bars) - 1) + [True]


def test_every_reason_has_a_meaning_and_is_documented() -> None:
    docs = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
    source = "".join(file.read_text() for file in Path(prepare.__file__).parent.glob("*.py"))
    used = set(re.findall(r'BadRow\(\s*"(\w+)"|reason="(\w+)"', source))
    codes = {first or second for first, second in used}
    assert codes and codes <= set(data_report.MEANINGS)
    assert all(f"`{code}`" in docs for code in data_report.MEANINGS)


def test_page_without_any_row_is_complete(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no rows"):
        data(tmp_path, "dataset=jsonl", f"dataset.path={DATA / 'empty.jsonl'}")
    assert page.page(written(tmp_path), ["it has no rows."]).count("</html>") == 1


def test_next_command_works_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my conf"
    (folder / "dataset").mkdir(parents=True)
    path = tmp_path / "it's = mine, really.jsonl"
    path.write_text('{"question": "Hi?", "answer": "Hello."}\n')
    (folder / "dataset" / "own.yaml").write_text(f"path: {json.dumps(str(path))}\n")
    typed = ["--config-dir", str(folder), "model=tiny", "dataset=own", f"outputs={tmp_path}", 'dataset.name="a, b"']
    monkeypatch.setattr("sys.argv", ["sft_exp", "data", *typed])
    start(["data", *typed])
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(shown) == ["python", "-m", "sft_exp", *typed]


def test_rows_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "\x1b[31mboss\nx", "content": "Hi"}]}) + "\n")
    with pytest.raises(ConfigError) as caught:
        data(tmp_path, f"dataset.path={path}")
    assert "\x1b" not in capsys.readouterr().out + str(caught.value) and "␛[31mboss" in str(caught.value)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SFT_EXP_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        ConfigError, match=r"cannot be written to .*file/data \(Not a directory\).* SFT_EXP_CACHE=FOLDER"
    ):
        data(tmp_path, f"dataset.path={DATA / 'sharegpt.jsonl'}")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("outputs=", "outputs= is empty"),
        ("dataset.split=test", "dataset.split=test is for datasets on the hub"),
        ("model.chat_template=", "model.chat_template= is empty"),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path: Path, typed: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        data(tmp_path, f"dataset.path={DATA / 'sharegpt.jsonl'}", typed)
    [problem] = caught.value.problems
    assert words in problem
