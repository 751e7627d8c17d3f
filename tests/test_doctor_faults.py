"""Every line of the doctor has a test in which its fault is really produced, or its input faked where it is read."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sft_exp

FAULTS = {
    # line -> how its fault comes about, the test
    "Python": ("a version outside the range", "test_doctor.py::test_python"),
    "packages": ("versions that are missing, too new or untested", "test_doctor.py::test_packages"),
    "torch": ("a driver's answer older than torch, no torch, a CPU build, a V100", "test_doctor.py::test_driver"),
    "kernels": ("a build without the card's architecture", "test_doctor.py::test_kernels_line"),
    "compilers": ("a real PATH without ninja", "test_doctor.py::test_a_compiler_is_missing"),
    "profile": ("another card's NVML answer", "test_doctor_cards.py::test_the_profile_line"),
    "card": ("NVML names a process that holds 20 GiB", "test_doctor_cards.py::test_a_card_that_is_used"),
    "cards": ("NVML does not start", "test_doctor_cards.py::test_no_driver"),
    "memory in use": ("NVML reports 4 GiB free", "test_doctor_cards.py::test_a_card_without_room"),
    "left-over ranks": ("a real process without its parent", "test_doctor.py::test_a_rank_without_a_parent_is_named"),
    "links": ("NVML reports no peer-to-peer copies, NVLink", "test_doctor_cards.py::test_links_of_a_4090"),
    "PCIe": ("NVML reports x4 of x16", "test_doctor_cards.py::test_a_narrow_slot"),
    "host memory": ("kernel files of a small container", "test_host.py::test_offload_that_does_not_fit"),
    "/dev/shm": ("what Docker gives; a real tmpfs of 1 MiB", "test_host.py::test_shared_memory"),
    "locked memory": ("a real low ulimit -l", "test_host.py::test_a_low_limit_on_locked_memory"),
    "pinned memory": ("CUDA's refusal", "test_host.py::test_pinned_memory"),
    "disk": ("a real file system of 1 MiB", "test_doctor_places.py::test_a_full_disk"),
    "tracking": ("a real port that nobody listens on", "test_doctor_places.py::test_tracker"),
    "hub": ("a real port that nobody listens on", "test_doctor_places.py::test_hub_does_not_answer"),
    "environment": ("variables of other work", "test_doctor_places.py::test_variables"),
    "left-over files": (
        "a real default_config.yaml",
        "test_doctor_places.py::test_a_leftover_accelerate_configuration",
    ),
    "all-reduce": ("a real rank that corrupts copies", "test_allreduce.py::test_wrong_copies_are_found_and_named"),
}
MAKERS = {"ok", "skip", "warn", "fail", "told", "judged"}
TESTS = Path(__file__).parent


def names() -> Iterator[str]:
    """First argument of every call that makes a line, constants of modules and f-strings' beginnings included."""
    for file in (Path(sft_exp.__file__).parent / "doctor").glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        known = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in MAKERS:
                first = call.args[0]
                if isinstance(first, ast.Constant):
                    yield str(first.value)
                elif isinstance(first, ast.Name) and known.get(first.id):
                    yield str(known[first.id])


def test_every_line_is_in_the_table() -> None:
    assert set(names()) | {"card"} == FAULTS.keys()


@pytest.mark.parametrize("line", FAULTS)
def test_its_test_is_there_and_looks_at_a_fault(line: str) -> None:
    file, name = FAULTS[line][1].split("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    [found] = functions
    whole = "".join(ast.unparse(part) for part in (*found.decorator_list, found))
    assert any(word in whole for word in ("State.fail", "State.warn", "State.skip", "'fail"))
