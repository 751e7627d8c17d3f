"""Rows of parquet and arrow."""

import json
import random
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reading import read, values
from sft_exp.errors import ConfigError
from sft_exp.reader import read_rows

CALLS = [{"args": {"x": 1}}, {"args": {"y": "ü"}}]
TABLE = pa.table({"calls": [[CALLS[0]], [CALLS[1]]], "n": [1, None]})
ROWS = [{"calls": [CALLS[0]], "n": 1}, {"calls": [CALLS[1]]}]


def write_arrow(path: Path, table: pa.Table, form: str) -> Path:
    writer = {"stream": pa.ipc.new_stream, "file": pa.ipc.new_file}[form]
    with pa.OSFile(str(path), "wb") as sink, writer(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=1000)
    return path


def test_parquet(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    found = list(read_rows(tmp_path / "a.parquet"))
    assert values(found) == ROWS
    assert str(found[1].place) == "a.parquet:2"


@pytest.mark.parametrize("form", ["stream", "file"])
def test_arrow(tmp_path: Path, form: str) -> None:
    found = list(read_rows(write_arrow(tmp_path / "a.arrow", TABLE, form)))
    assert values(found) == ROWS
    assert str(found[1].place) == "a.arrow:2"
    many = pa.table({"n": range(2500)})
    assert values(list(read_rows(write_arrow(tmp_path / "b.arrow", many, form)))) == [{"n": at} for at in range(2500)]


def test_arrow_of_datasets(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path))
    assert values(list(read_rows(tmp_path / "data-00000-of-00001.arrow"))) == ROWS


def test_json_inside_tables(tmp_path: Path) -> None:
    """`datasets` keeps objects of mixed shapes so; a missing one and damaged JSON are left to the normaliser."""
    calls = pa.array(['{"x": 1}', '{"x": ["y", null], "z": null}', None, "{cut"], pa.json_())
    lists = pa.ListArray.from_arrays([0, 2, 2, 3, 4], calls)
    table = pa.table({"turn": pa.StructArray.from_arrays([lists], ["calls"]), "plain": calls})
    pq.write_table(table, tmp_path / "a.parquet")
    wanted = [
        {"turn": {"calls": [{"x": 1}, {"x": ["y", None], "z": None}]}, "plain": {"x": 1}},
        {"turn": {"calls": []}, "plain": {"x": ["y", None], "z": None}},
        {"turn": {"calls": [None]}},
        {"turn": {"calls": ["{cut"]}, "plain": "{cut"},
    ]
    assert values(list(read_rows(tmp_path / "a.parquet"))) == wanted
    assert values(list(read_rows(write_arrow(tmp_path / "a.arrow", table, "stream")))) == wanted


def test_json_nested_deeply_inside_tables(tmp_path: Path) -> None:
    for depth in (400, 900, 100_000):
        table = pa.table({"deep": pa.array(["[" * depth + "]" * depth, "1"], pa.json_())})
        pq.write_table(table, tmp_path / "a.parquet")
        assert [row.reason for row in read_rows(tmp_path / "a.parquet")] == [None, None]


def test_mixed_tool_calls_through_datasets(tmp_path: Path) -> None:
    calls = [{"call": {"arguments": {"x": 1}}}, {"call": {"arguments": {"x": "one", "y": [1]}}}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(call) + "\n" for call in calls))
    table = datasets.load_dataset("json", data_files=str(tmp_path / "a.jsonl"), split="train", cache_dir=str(tmp_path))
    table.save_to_disk(str(tmp_path / "saved"))
    table.to_parquet(str(tmp_path / "a.parquet"))
    assert values(list(read_rows(tmp_path / "saved" / "data-00000-of-00001.arrow"))) == calls
    assert values(list(read_rows(tmp_path / "a.parquet"))) == calls


@pytest.mark.parametrize("form", ["stream", "file", "parquet"])
def test_text_that_is_not_utf8_spoils_its_row_only(tmp_path: Path, form: str) -> None:
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary())
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 3, raw.buffers())})
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        path = write_arrow(tmp_path / "a.arrow", table, form)
    found = list(read_rows(path))
    assert [(row.value, row.reason) for row in found] == [
        ({"text": "a"}, None),
        (None, "invalid_text"),
        ({"text": "c"}, None),
    ]


@pytest.mark.parametrize("form", ["stream", "file"])
def test_damaged_arrow_is_refused(tmp_path: Path, form: str) -> None:
    table = pa.table({"text": ["some text"] * 2500})
    whole = write_arrow(tmp_path / "a.arrow", table, form).read_bytes()
    shorter, killed = whole.replace(b"some text", b"", 1), whole[:-8]
    for content in (
        whole[: len(whole) // 2],
        whole[:3],
        shorter,
        killed,
        *([whole + whole] if form == "stream" else []),
    ):
        with pytest.raises(
            ConfigError, match=r"^a\.arrow (is not a readable arrow file|cannot be read) \(.+\): .+ again\.$"
        ):
            read(tmp_path / "a.arrow", content)


def test_wrong_offsets_do_not_end_the_process(tmp_path: Path) -> None:
    offsets = [0, 111, 222, 333]
    column = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b"x" * 333)]
    )
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": column}), "stream")
    number = (222).to_bytes(4, "little")
    assert path.read_bytes().count(number) == 1
    with pytest.raises(ConfigError, match="not a readable arrow file"):
        read(path, path.read_bytes().replace(number, (2**30).to_bytes(4, "little")))


@pytest.mark.parametrize("form", ["s.arrow", "f.arrow", "parquet"])
def test_damage_anywhere_is_refused_or_spoils_rows(tmp_path: Path, form: str) -> None:
    """Never a traceback, never a crash; whatever is read is all that was there."""
    draw = random.Random(0)
    table = pa.Table.from_pylist([{"turns": [{"from": "gpt", "value": "ü" * at}], "id": at} for at in range(40)])
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(table, path, compression="none")
    else:
        write_arrow(path, table, {"s": "stream", "f": "file"}[form[0]])
    whole = path.read_bytes()
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 2, 20])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        try:
            assert len(read(path, bytes(damaged))) == len(table)
        except ConfigError:
            refused += 1
    assert 50 < refused < 300


def test_parquet_whose_footer_hides_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path)
    whole = path.read_bytes()
    pq.write_metadata(TABLE.schema, path)
    footer = path.read_bytes()[4:]
    assert list(read_rows(path)) == []  # no rows, and none claimed
    path.write_bytes(whole + footer)
    with pytest.raises(ConfigError, match=r"a\.parquet is not a readable parquet file \(it holds data"):
        list(read_rows(path))


def test_arrow_file_whose_footer_hides_its_rows(tmp_path: Path) -> None:
    whole = write_arrow(tmp_path / "a.arrow", TABLE, "file").read_bytes()
    empty = write_arrow(tmp_path / "b.arrow", TABLE.slice(0, 0), "file").read_bytes()
    assert list(read_rows(tmp_path / "b.arrow")) == []

    def footer(content: bytes) -> bytes:
        return content[-int.from_bytes(content[-10:-6], "little") - 10 :]

    (tmp_path / "a.arrow").write_bytes(whole.removesuffix(footer(whole)) + footer(empty))
    with pytest.raises(ConfigError, match=r"a\.arrow is not a readable arrow file \(it holds more batches"):
        list(read_rows(tmp_path / "a.arrow"))
