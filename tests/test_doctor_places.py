"""Disk, tracking server, hub, and what other work has left in the environment; each fault is a real one."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from composing import NO_CARDS, machine, resolved
from sft_exp.doctor import environment, places
from sft_exp.doctor.line import Line, State
from sft_exp.launch import free_port
from sft_exp.rules import environment as rules

GPU = machine("4090", 4)
CPU = ("model=tiny", "hw=cpu")


def only(line: Line | list[Line]) -> tuple[State, str]:
    [line] = line if isinstance(line, list) else [line]
    return line.state, f"{line.found}: {line.advice}"


@pytest.fixture
def server() -> object:
    """Port of something that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_disk_with_room(here: Path) -> None:
    state, text = only(places.disk(resolved(*CPU, "train.save_steps=5")))
    assert state is State.ok
    assert "this run writes at most" in text
    assert (
        "not known" in only(places.disk(resolved(*CPU, "model.weights=pretrained", "model.shape.hidden_size=null")))[1]
    )


def test_a_full_disk(here: Path) -> None:
    """A real file system of 1 MiB, in a mount namespace of its own."""
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
from composing import resolved
from sft_exp.doctor import places
[line] = places.disk(resolved("model=tiny", "hw=cpu", "outputs={here}/small/outputs"))
print(line.state.value, line.found, line.advice)
"""
    mount = f"mkdir {here}/small && mount -t tmpfs -o size=1m none {here}/small"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("mount namespaces are not allowed here")
    assert done.stdout.startswith("fail outputs="), done.stderr
    assert "0.0 GiB free" in done.stdout
    assert "keep fewer checkpoints" in done.stdout


def test_outputs_that_cannot_be_made(here: Path) -> None:
    (here / "file").write_text("")
    state, text = only(places.disk(resolved(*CPU, "outputs=file/outputs")))
    assert state is State.fail
    assert "set outputs=FOLDER" in text


def test_tracker(here: Path, server: int) -> None:
    assert only(places.tracker(resolved(*CPU)))[0] is State.ok
    assert only(places.tracker(resolved(*CPU, "tracking=none")))[0] is State.skip
    assert only(places.tracker(resolved(*CPU, f"tracking.uri=http://127.0.0.1:{server}")))[0] is State.ok
    state, text = only(places.tracker(resolved(*CPU, f"tracking.uri=http://127.0.0.1:{free_port()}")))
    assert state is State.fail
    assert "does not answer" in text
    assert text.endswith("start it, or use tracking.uri=null or tracking=none")


def cache(folder: Path, *repositories: str) -> dict[str, str]:
    for repository in repositories:
        (folder / "hub" / repository / "snapshots" / "abc").mkdir(parents=True)
    return {"HF_HOME": str(folder)}


QWEN = "models--Qwen--Qwen2.5-0.5B"


def test_hub_is_not_needed(here: Path) -> None:
    assert only(places.model_hub(resolved(*CPU), {}))[0] is State.skip
    assert only(places.model_hub(resolved("hw=cpu"), {}))[0] is State.skip  # the demo's model is a file


def test_hub_answers(here: Path, server: int) -> None:
    env = {"HF_ENDPOINT": f"http://user:word@127.0.0.1:{server}", **cache(here)}
    state, text = only(places.model_hub(resolved("model=qwen0.5b", "hw=cpu"), env))
    assert state is State.ok
    assert "Qwen/Qwen2.5-0.5B will be downloaded" in text
    assert "word" not in text


def test_hub_does_not_answer(here: Path) -> None:
    """A real port that nobody listens on, with and without a copy in the cache, and behind a proxy."""
    experiment, port = resolved("model=qwen0.5b", "hw=cpu"), free_port()
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", **cache(here)}
    state, text = only(places.model_hub(experiment, env))
    assert state is State.fail
    assert "HF_ENDPOINT" in text
    proxied = {**env, "HF_ENDPOINT": "http://hub.invalid", "http_proxy": f"http://127.0.0.1:{port}"}
    assert f"the proxy 127.0.0.1:{port} does not answer" in only(places.model_hub(experiment, proxied))[1]
    cache(here, QWEN)
    state, text = only(places.model_hub(experiment, env))
    assert state is State.warn
    assert "HF_HUB_OFFLINE=1" in text


def test_offline_mode(here: Path) -> None:
    experiment = resolved("model=qwen0.5b", "dataset=hub", "dataset.path=org/rows", "hw=cpu")
    env = {"HF_HUB_OFFLINE": "1", **cache(here, QWEN)}
    state, text = only(places.model_hub(experiment, env))
    assert state is State.fail
    assert "org/rows is not in the cache" in text
    cache(here, "datasets--org--rows")
    assert only(places.model_hub(experiment, env))[0] is State.ok


def test_variables(here: Path) -> None:
    env = {
        "HOME": str(here), "ACCELERATE_MIXED_PRECISION": "fp16", "RANK": "3", "NCCL_ALGO": "Tree", "CUDA_HOME": "/cuda",
        "NCCL_VERSION": "2.29", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "1", "PATH": "/bin",
    }  # fmt: skip
    lines = environment.variables(resolved("model=tiny", "hw=4090x4", on=GPU), GPU, env)
    assert [line.state for line in lines] == [State.warn, State.warn, State.ok]
    assert lines[0].found.startswith("CUDA_LAUNCH_BLOCKING=1 in your shell makes every kernel wait")
    assert lines[1].found == "set here and passed on to the ranks: NCCL_ALGO"
    assert lines[2].found == "left over and kept from the ranks: ACCELERATE_MIXED_PRECISION, RANK"
    assert only(environment.variables(resolved(*CPU), NO_CARDS, {}))[0] is State.ok


def test_a_credential_is_not_shown(here: Path) -> None:
    [line] = rules.warnings(resolved(*CPU), {"TORCH_LOGS": "http://me:word@host"})
    assert "word" not in line


def test_another_device_for_deepspeed(here: Path) -> None:
    experiment = resolved("model=tiny", "hw=4090x4", "zero=2", on=GPU)
    state, text = only(environment.variables(experiment, GPU, {"DS_ACCELERATOR": "cpu"}))
    assert state is State.fail
    assert "DS_ACCELERATOR=cpu" in text
    assert list(rules.problems(experiment, {"DS_ACCELERATOR": "cuda"})) == []


def test_visible_cards_that_are_not_there(here: Path) -> None:
    experiment = resolved("model=tiny", "hw=4090x1", on=GPU)
    state, text = only(environment.variables(experiment, GPU, {"CUDA_VISIBLE_DEVICES": "3,7"}))
    assert state is State.warn
    assert "names 7 and this machine has [0, 1, 2, 3]" in text
    assert only(environment.variables(experiment, GPU, {"CUDA_VISIBLE_DEVICES": "GPU-1"}))[0] is State.ok


def test_a_leftover_accelerate_configuration(here: Path) -> None:
    """In a home of its own; it matters only for accelerate's launcher, which takes from it what it is not told."""
    folder = here / ".cache" / "huggingface" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text("gpu_ids: '2,3'\nmixed_precision: fp16\n")
    env = {"HOME": str(here)}
    state, text = only(environment.files(resolved("model=tiny", "hw=4090x4", on=GPU), env, here))
    assert state is State.ok
    assert "default_config.yaml is read by accelerate launch only" in text
    by_accelerate = resolved("model=tiny", "hw=4090x4", "hw.launcher=accelerate", on=GPU)
    state, text = only(environment.files(by_accelerate, env, here))
    assert state is State.warn
    assert text.endswith("move it away")
    assert only(environment.files(by_accelerate, {"HOME": str(here), "HF_HOME": "/none"}, here))[1].startswith(
        "none of"
    )


def test_a_leftover_deepspeed_environment(here: Path) -> None:
    (here / ".deepspeed_env").write_text("NCCL_IB_DISABLE=1\n")
    experiment = resolved("model=tiny", "hw=4090x4", "zero=2", "hw.launcher=deepspeed", on=GPU)
    assert only(environment.files(experiment, {"HOME": "/none"}, here))[0] is State.warn
    assert only(environment.files(resolved(*CPU), {"HOME": str(here)}, here / "x"))[0] is State.ok


def test_a_lock_of_an_interrupted_build(here: Path) -> None:
    folder = here / ".cache" / "torch_extensions" / "py311_cpu" / "cpu_adam"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    env = {"HOME": str(here)}
    state, text = only(environment.files(resolved("model=tiny", "hw=cpu2", "zero=2_offload"), env, here))
    assert state is State.warn
    assert f"rm {folder}/lock" in text
    assert only(environment.files(resolved(*CPU), env, here))[0] is State.ok
