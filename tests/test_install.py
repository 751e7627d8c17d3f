"""The built wheel works from another directory, without the checkout."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


def call(*argv: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *argv], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call("build", "--wheel", "--no-isolation", "--outdir", str(folder), cwd=ROOT)
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's content and comes before every other place of packages."""
    folder = tmp_path_factory.mktemp("site")
    call("pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(folder), str(wheel), cwd=folder)
    return folder


@pytest.fixture
def elsewhere(here: Path, installed: Path) -> dict[str, Path]:
    return {"cwd": here, "site": installed}


def test_the_wheel_holds_configuration_and_assets(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "src" / "sft_exp" / "assets").rglob("*")]
    local = ROOT / "conf" / "local"
    for file in [file for file in shipped if file.is_file() and local not in file.parents]:
        within = (
            file.relative_to(ROOT / "src") if ROOT / "src" in file.parents else Path("sft_exp", file.relative_to(ROOT))
        )
        assert str(within) in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sft_exp"}
    assert not [name for name in names if "test" in name or name.endswith(".pyc")]


def test_it_is_the_installed_package_that_runs(elsewhere: dict[str, Path]) -> None:
    code = "import sft_exp, sft_exp.cli; print(sft_exp.__file__); print(sft_exp.cli.conf_dir())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere["cwd"], env={**os.environ, "PYTHONPATH": str(elsewhere["site"])},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    file, conf = map(Path, done.stdout.split())
    assert file.parent == elsewhere["site"] / "sft_exp"
    assert conf == elsewhere["site"] / "sft_exp" / "conf"


def test_help(elsewhere: dict[str, Path]) -> None:
    text = call("sft_exp", "--help", cwd=elsewhere["cwd"], PYTHONPATH=str(elsewhere["site"]))
    assert "qwen0.5b" in text
    assert list(elsewhere["cwd"].iterdir()) == []


def test_plan(elsewhere: dict[str, Path]) -> None:
    arguments = ("plan", "model=qwen0.5b", "hw=4090x4", "zero=2")
    text = call("sft_exp", *arguments, cwd=elsewhere["cwd"], PYTHONPATH=str(elsewhere["site"]))
    for words in ("Qwen/Qwen2.5-0.5B", "--nproc-per-node 4", '"stage": 2', "[hw=4090x4]", "sample:sample.jsonl"):
        assert words in text
    assert list(elsewhere["cwd"].iterdir()) == []


def test_a_mistake_is_one_sentence_there_too(elsewhere: dict[str, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sft_exp", "model=qwen05b"], cwd=elsewhere["cwd"],
        env={**os.environ, "PYTHONPATH": str(elsewhere["site"])}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Did you mean qwen0.5b?" in done.stderr


def test_doctor(elsewhere: dict[str, Path]) -> None:
    """Ranges come from the wheel's metadata, tested versions from the list that it holds."""
    text = call("sft_exp", "doctor", "model=tiny", "hw=cpu2", cwd=elsewhere["cwd"], PYTHONPATH=str(elsewhere["site"]))
    assert re.search(r"packages +\d+ as tested", text) or "(tested " in text
    assert "2 ranks, every value right" in text
