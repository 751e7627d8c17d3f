"""What other work has left behind and would change the run: variables, configuration files, locks of builds."""

from collections.abc import Mapping
from pathlib import Path

from sft_exp import launch
from sft_exp.doctor.line import Line, State, ok, told, warn
from sft_exp.machine import Machine
from sft_exp.rules import environment as rules
from sft_exp.schema import Experiment, Launcher


def variables(experiment: Experiment, machine: Machine, env: Mapping[str, str]) -> list[Line]:
    """Variables that reach the ranks, and those that the launcher keeps from them."""
    found = told("environment", rules.problems(experiment, env))
    found += told("environment", rules.warnings(experiment, env), State.warn)
    found += told("environment", rules.visible(machine, env), State.warn)
    others = [name for name in rules.passed_on(experiment, env) if name not in rules.EFFECTS]
    if others:
        advice = "unset those that other work has left; run folders record them"
        found.append(warn("environment", f"set here and passed on to the ranks: {', '.join(others)}", advice))
    kept = sorted(name for name in env if launch.INHERITED.fullmatch(name))
    if kept:
        found.append(ok("environment", f"left over and kept from the ranks: {', '.join(kept)}"))
    return found or [ok("environment", "no variable would change the run")]


def files(experiment: Experiment, env: Mapping[str, str], here: Path) -> list[Line]:
    """Configuration files of accelerate and DeepSpeed, and locks of an interrupted build; `here` is where it runs."""
    lines = settings(experiment, env, here)
    if experiment.zero.stage > 0 and (locks := _locks(env)):
        lines.append(
            warn("left-over files", f"a lock of a build stands in {locks[0].parent.name} of {locks[0].parents[1]}",
                 f"a run waits for who holds it; if nothing is being built, save it the time: rm {locks[0]}")
        )  # fmt: skip
    return lines or [ok("left-over files", "none of accelerate or DeepSpeed")]


def settings(experiment: Experiment, env: Mapping[str, str], here: Path) -> list[Line]:
    """Files from which a launcher takes what it is not told."""
    launcher = experiment.hw.launcher if experiment.hw.ranks > 1 else None
    lines = [_answers(file, launcher is Launcher.accelerate) for file in _accelerate(env) if file.is_file()]
    name = env.get("DS_ENV_FILE", ".deepspeed_env")
    exports = [folder / name for folder in (_home(env), here) if (folder / name).is_file()]
    return lines + [_exports(file, launcher is Launcher.deepspeed) for file in exports]


def _answers(file: Path, used: bool) -> Line:
    if used:
        return warn("left-over files", f"{file} fills in what hw.launcher=accelerate is not told", "move it away")
    return ok("left-over files", f"{file} is read by accelerate launch only, which this run does not use")


def _exports(file: Path, used: bool) -> Line:
    if used:
        return warn("left-over files", f"{file} sets variables on other machines of a launch", "check it")
    return ok("left-over files", f"{file} is read by DeepSpeed's launcher only, which this run does not use")


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or Path.home())


def _cache(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or _home(env) / ".cache")


def _accelerate(env: Mapping[str, str]) -> list[Path]:
    folder = Path(env.get("HF_HOME") or _cache(env) / "huggingface") / "accelerate"
    return [folder / f"default_config.{kind}" for kind in ("yaml", "json")]


def _locks(env: Mapping[str, str]) -> list[Path]:
    """Lock files of torch's builds: <extensions>/<python and CUDA>/<operation>/lock."""
    folder = Path(env.get("TORCH_EXTENSIONS_DIR") or _home(env) / ".cache" / "torch_extensions")
    return sorted([*folder.glob("*/*/lock"), *folder.glob("*/lock")])
