"""Digests of files are computed once, and never wrong."""

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from sft_exp.digests import Digests


def digest(file: Path, path: Path) -> str:
    digests = Digests(file)
    found = digests.of(path)
    digests.write()
    return found


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a minute pass, so that files just written are no longer young: their ctime cannot be set back."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one")
    return path


def kept(file: Path) -> dict[str, list[int | str]]:
    found = json.loads(file.read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.usefixtures("later")
def test_unchanged_files_are_not_read_again(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cache" / "digests.json"
    first = digest(file, data)
    assert first == hashlib.sha256(b"one").hexdigest()
    assert list(kept(file)) == [str(data)]
    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "file_digest", None)
        assert digest(file, data) == first
        patched.chdir(tmp_path)
        assert digest(file, Path("a.jsonl")) == first


@pytest.mark.usefixtures("later")
def test_content_decides(tmp_path: Path, data: Path) -> None:
    file = tmp_path / "digests.json"
    first = digest(file, data)
    before = data.stat()
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns + 5))
    assert digest(file, data) == first
    data.write_bytes(b"two")  # as long as before, and made to look as old
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest(file, data) == hashlib.sha256(b"two").hexdigest()
    other = tmp_path / "other"
    other.write_bytes(b"six")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(data)
    assert digest(file, data) == hashlib.sha256(b"six").hexdigest()


def test_young_files_are_not_kept(tmp_path: Path, data: Path) -> None:
    file = tmp_path / "digests.json"
    digest(file, data)
    assert not file.exists()
    ahead = time.time_ns() + 3600 * 10**9
    os.utime(data, ns=(ahead, ahead))
    digest(file, data)
    assert not file.exists()


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff", b"[]", b'{"PATH": 1}', b'{"PATH": ["", 1]}', b'{"PATH": [1, 2, 3, 4, null]}']
)
def test_damaged_cache_is_ignored(tmp_path: Path, data: Path, damage: bytes) -> None:
    file = tmp_path / "digests.json"
    file.write_bytes(damage.replace(b"PATH", str(data).encode()))
    assert digest(file, data) == hashlib.sha256(b"one").hexdigest()
    assert len(kept(file)) == 1


@pytest.mark.usefixtures("later")
def test_two_processes_add_to_one_cache(tmp_path: Path, data: Path) -> None:
    file, other = tmp_path / "digests.json", tmp_path / "b.jsonl"
    other.write_bytes(b"two")
    one, two = Digests(file), Digests(file)
    one.of(data)
    two.of(other)
    one.write()
    two.write()
    assert kept(file).keys() == {str(data), str(other)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl", "digests.json"]


@pytest.mark.usefixtures("later")
def test_a_cache_that_cannot_be_written_costs_only_time(data: Path) -> None:
    assert digest(data / "digests.json", data) == hashlib.sha256(b"one").hexdigest()


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Digests(tmp_path / "digests.json").of(tmp_path / "none")
