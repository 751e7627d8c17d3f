"""Python and packages against the ranges that are needed and the versions that were tested."""

import importlib.metadata
import platform
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from sft_exp import record
from sft_exp.doctor.line import Line, fail, ok, skip, warn
from sft_exp.record import installed
from sft_exp.rules import zero
from sft_exp.schema import AdapterKind, Experiment, TrackingKind

HERE = Path(__file__).resolve().parents[1]
"""Folder of the package."""


def needs() -> tuple[str, list[Requirement]]:
    """Python's range and each dependency's: of the checkout, else of the installed package."""
    project = HERE.parents[1] / "pyproject.toml"
    if project.is_file():
        table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        return table["requires-python"], [Requirement(text) for text in table["dependencies"]]
    meta = importlib.metadata.metadata("sft_exp")
    listed = [Requirement(text) for text in importlib.metadata.requires("sft_exp") or []]
    return meta["Requires-Python"], [item for item in listed if item.marker is None]


def tested() -> dict[str, str]:
    """Version of each package in the tested set; empty if the list was not installed."""
    for file in (HERE / "constraints.txt", HERE.parents[1] / "constraints.txt"):
        if file.is_file():
            return dict(re.findall(r"^([\w.-]+)==(\S+)", file.read_text(encoding="utf-8").lower(), re.M))
    return {}


def python(wanted: str, version: str) -> Line:
    """The interpreter against the project's range."""
    if version not in SpecifierSet(wanted):
        return fail("Python", f"{version}, and {wanted} is needed", "make the environment with make PYTHON=python3.12")
    return ok("Python", version)


def packages(wanted: list[Requirement], set_: Mapping[str, str], found: Mapping[str, str]) -> list[Line]:
    """One line for what cannot work, one for what was not tested, or one that all is well."""
    wrong = [
        f"{item.name} {found.get(item.name, 'not installed')} (needs {item.specifier or 'any version'})"
        for item in wanted
        if item.name not in found or not item.specifier.contains(found[item.name], prereleases=True)
    ]
    lines = [fail("packages", ", ".join(wrong), "install the tested set with make setup")] if wrong else []
    other = [
        f"{name} {version} (tested {set_[name]})"
        for name, version in found.items()
        if name in record.PACKAGES and name in set_ and Version(version).release[:2] != Version(set_[name]).release[:2]
    ]
    if other:
        lines.append(warn("packages", ", ".join(other), "if a run fails, install the tested set with make setup"))
    if not set_:
        lines.append(skip("packages", "no list of tested versions is installed"))
    return lines or [ok("packages", f"{len(found)} as tested")]


def unneeded(experiment: Experiment) -> set[str]:
    """Packages that this run does without."""
    model, optimizer = experiment.model, experiment.train.optimizer
    needed = {
        "mlflow": experiment.tracking.kind is TrackingKind.mlflow,
        "deepspeed": experiment.zero.stage > 0,
        "ninja": bool(zero.compiled(experiment)),
        "bitsandbytes": experiment.adapter.kind is AdapterKind.qlora or "8bit" in optimizer or "paged" in optimizer,
        "gguf": bool(model.gguf),
    }
    return {name for name, asked in needed.items() if not asked}


def lines(experiment: Experiment) -> list[Line]:
    """Lines on this environment."""
    range_, wanted = needs()
    wanted = [item for item in wanted if item.name not in unneeded(experiment)]
    found = installed([item.name for item in wanted])
    return [python(range_, platform.python_version()), *packages(wanted, tested(), found)]
