"""What makes a run comparable, and what stays out because it is secret."""

import json
import subprocess
from pathlib import Path

import pytest

from composing import machine
from sft_exp import record


def git(folder: Path, *arguments: str) -> None:
    settings = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *settings, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "below").mkdir(parents=True)
    git(folder, "init", "--initial-branch=main")
    (folder / "code.py").write_text("one = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def test_clean_repository(repository: Path) -> None:
    facts, diff = record.git(repository / "below")
    assert len(facts["commit"]) == 40
    assert (facts["branch"], facts["dirty"], facts["untracked"], diff) == ("main", False, [], "")


def test_dirty_repository(repository: Path) -> None:
    (repository / "code.py").write_text("one = 2\n")
    facts, diff = record.git(repository)
    assert (facts["dirty"], facts["untracked"]) == (True, [])
    assert "-one = 1" in diff
    assert "+one = 2" in diff


def test_staged_changes_are_in_the_diff(repository: Path) -> None:
    (repository / "code.py").write_text("one = 3\n")
    git(repository, "add", ".")
    assert "+one = 3" in record.git(repository)[1]


def test_untracked_files(repository: Path) -> None:
    (repository / "new.py").write_text("")
    facts, diff = record.git(repository)
    assert (facts["dirty"], facts["untracked"], diff) == (True, ["new.py"], "")


def test_a_diff_that_is_no_text(repository: Path) -> None:
    (repository / "code.py").write_bytes(b"one = '\xff\xfe'\n")
    assert "+one" in record.git(repository)[1]


def test_outside_of_a_repository(tmp_path: Path) -> None:
    assert record.git(tmp_path) == ({}, "")
    assert record.git(tmp_path / "nowhere") == ({}, "")


def test_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert record.git(tmp_path) == ({}, "")


def test_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert record.git(repository) == ({}, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://user:secret@proxy:3128/x?y=1", "http://proxy:3128/x?y=1"),
        ("http://user@proxy:3128", "http://proxy:3128"),
        ("http://u:p@ss@proxy:3128", "http://proxy:3128"),
        ("http://proxy:3128", "http://proxy:3128"),
        ("//user:secret@proxy", "//proxy"),
        ("localhost,127.0.0.1", "localhost,127.0.0.1"),
        ("https://hub/?token=hf_abcdefghijklmnopqrstuvwx", "https://hub/?token=hf_***"),
        ("hf_short", "hf_short"),
        ("/home/me@work/models", "/home/me@work/models"),
    ],
)
def test_redact(text: str, expected: str) -> None:
    assert record.redact(text) == expected


def test_environment_holds_no_secret() -> None:
    env = {
        "CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO", "HF_HUB_OFFLINE": "1", "HF_HOME": "/models",
        "HTTPS_PROXY": "http://user:secret@proxy:1", "no_proxy": "localhost", "OMP_NUM_THREADS": "2",
        "HF_TOKEN": "hf_secretsecretsecretsecret", "HUGGING_FACE_HUB_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "MLFLOW_TRACKING_PASSWORD": "secret", "WANDB_API_KEY": "secret", "PATH": "/bin", "HOME": "/home/me",
    }  # fmt: skip
    found = record.environment(env)
    assert "secret" not in json.dumps(found)
    assert found == {
        "CUDA_VISIBLE_DEVICES": "0", "HF_HOME": "/models", "HF_HUB_OFFLINE": "1", "HTTPS_PROXY": "http://proxy:1",
        "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "no_proxy": "localhost",
    }  # fmt: skip


def test_versions() -> None:
    found = record.versions()
    assert {"python", "torch", "transformers", "trl", "hydra-core"} <= found.keys()


def test_freeze() -> None:
    lines = record.freeze().splitlines()
    assert any(line.lower().startswith("omegaconf==") for line in lines)
    assert all("==" in line for line in lines)
    assert lines == sorted(lines, key=str.lower)


def test_collect() -> None:
    facts, _ = record.collect(machine("4090", 2), ["model=tiny"], ["model=tiny"])
    assert facts["argv"] == ["python", "-m", "sft_exp", "model=tiny"]
    assert facts["machine"]["driver"] == "580.95"
    assert [card["index"] for card in facts["machine"]["cards"]] == [0, 1]
    assert facts["machine"]["memory_gib"] > 0
    json.dumps(facts)
