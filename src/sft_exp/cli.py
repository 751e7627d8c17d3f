"""The command line, and the only place where Hydra composes: overrides in, one typed Experiment out."""

import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sft_exp import (
    chat,
    data,
    data_rows,
    explain,
    launch_command,
    merge,
    own_files,
    plan,
    plan_table,
    profiles,
    quoting,
    rerun,
    run,
    rundir,
    schema,
    ui,
    words,
)
from sft_exp.compare import command as compare
from sft_exp.doctor import command as doctor
from sft_exp.errors import ConfigError, SftExpError, report
from sft_exp.request import Request, flatten
from sft_exp.sweeps import command as sweep
from sft_exp.sweeps.launcher import OWN, Chosen

COMMANDS: dict[str, Callable[[Request], object]] = {
    "train": run.run,
    "plan": plan.show,
    "launch-command": launch_command.show,
    "data": data.show,
    "doctor": doctor.show,
    "ui": ui.serve,
}
"""What the first word may be; without one it is `train`."""
ABOUT_RUNS: dict[tuple[str, ...], Callable[[list[str]], None]] = {
    ("data", "rows"): data_rows.show,
    ("compare",): compare.show,
    ("rerun",): rerun.show,
    ("chat",): chat.show,
    ("merge",): merge.show,
}
"""Commands about a finished run, with arguments of their own: nothing to compose."""
NAMES = [*COMMANDS, *(name[0] for name in ABOUT_RUNS if name[0] not in COMMANDS)]
conf_dir = profiles.conf_dir


def quote_zero(argument: str) -> str:
    """`zero=0,2_offload` -> `zero='0',2_offload`: Hydra takes a bare digit for a number, not for an option's name."""
    match = re.fullmatch(r"(zero)=([\w,]+)", argument)
    if not match:
        return argument
    options = [f"'{option}'" if option.isdigit() else option for option in match[2].split(",")]
    return f"{match[1]}={','.join(options)}"


def nest_part(argument: str) -> str:
    """`+dataset.mixture.a.path=x` -> `+dataset.mixture={a:{path:x}}`: OmegaConf takes a new part whole only."""
    match = re.fullmatch(r"(\+\+?dataset\.mixture)\.([\w-]+)(?:\.(\w+))?=(.*)", argument, re.DOTALL)
    if not match or not quoting.reads(shlex.quote(argument)):  # what Hydra says should be about the word as typed
        return argument
    fields = f"{{{match[3]}:{match[4]}}}" if match[3] else match[4]
    return f"{match[1]}={{{match[2]}:{fields}}}"


def read_arguments(argv: list[str]) -> tuple[str, list[str]]:
    """Command and Hydra arguments; a command line without overrides is the demo."""
    command = "train"
    if argv and not argv[0].startswith(("-", "~")) and "=" not in argv[0]:
        command, argv = argv[0], argv[1:]
        if command not in COMMANDS:
            raise ConfigError(unknown_command(command))
    if command == "doctor":
        argv = [word for word in argv if word != doctor.JSON]
    elif command != "ui" and not argv:
        argv = ["experiment=demo"]
    return command, [nest_part(quote_zero(word)) for word in words.arranged(argv, NAMES)]


def unknown_command(word: str) -> str:
    """One sentence about a first word that is no command."""
    return (
        f"'{word}' is no command and no override: use one of {', '.join(NAMES)}, "
        f"or overrides such as model=qwen0.5b train.learning_rate=1e-4."
    )


def to_request(config: DictConfig, argv: list[str]) -> Request:
    """Typed request from a composed configuration; nothing below this function sees Hydra's objects."""
    # `+key=1` forces a key that the schema does not have past Hydra.
    known, given = explain.known_keys(), OmegaConf.to_container(config)
    assert isinstance(given, dict)
    unknown = [
        key
        for key in flatten({str(key): value for key, value in given.items()})
        if key not in known and not key.startswith(explain.OPEN)
    ]
    if unknown:
        raise ConfigError(*(explain.unknown_key(key) for key in unknown))
    experiment = OmegaConf.to_object(config)
    assert isinstance(experiment, schema.Experiment)
    settings = HydraConfig.get()
    if settings.mode is RunMode.RUN and (launcher := settings.runtime.choices["hydra/launcher"]) != OWN:
        raise ConfigError(
            f"hydra/launcher={launcher} runs the jobs of -m; one run and a search are run here: remove it."
        )
    choices = {str(group): option for group, option in settings.runtime.choices.items() if option}
    sources = [source.path for source in settings.runtime.config_sources if source.schema == "file"]
    if problems := list(own_files.empty(choices, sources, conf_dir())):
        raise ConfigError(*problems)
    return Request(
        experiment=experiment,
        overrides=list(settings.overrides.task),
        choices=choices,
        sources=sources,
        argv=argv,
    )


def compose(argv: list[str]) -> tuple[list[Request], Path | None]:
    """Let Hydra compose: one request, or one for each job of a sweep and the folder that the sweep may make.

    Hydra does nothing else. What runs, runs after it has returned, so that its folders, logs and error handling
    have no part in it; and every job of a sweep is composed before the first one starts.
    """
    requests: list[Request] = []
    errors: list[Exception] = []
    modes: list[RunMode | None] = []

    @hydra.main(version_base=None, config_path=str(conf_dir()), config_name="config")
    def task(config: DictConfig) -> None:
        modes.append(HydraConfig.get().mode)
        try:
            requests.append(to_request(config, argv))
        except Exception as error:  # Hydra adds a line of its own to whatever leaves this function
            errors.append(error)

    schema.register()
    Chosen.launcher = None
    # Hydra makes a sweep's folder before it has composed the jobs, some of which may be refused: let it make another.
    with hydra_raises(), tempfile.TemporaryDirectory() as elsewhere:
        os.environ["SFT_EXP_SWEEP_DIR"] = elsewhere  # read by config.yaml
        try:
            task()
        except (ValueError, YAMLError) as error:
            raise ConfigError(explain.explain(error)) from error
        finally:
            del os.environ["SFT_EXP_SWEEP_DIR"]
    if errors:
        raise errors[0]
    searches = bool(requests) and requests[0].experiment.sweep.sampler is not None
    if searches and RunMode.MULTIRUN in modes:
        raise ConfigError(
            "a search chooses its values itself: put those of -m into sweep.space, or set sweep.sampler=null."
        )
    if RunMode.MULTIRUN not in modes and not searches:
        return requests, None
    outputs = Path(requests[0].experiment.outputs).expanduser().absolute()
    return requests, rundir.dated(outputs, "sweep")


def compose_one(argv: list[str]) -> Request:
    """The request of a command line that is no sweep."""
    sys.argv[1:] = read_arguments(argv)[1]
    [request], _ = compose(argv)
    return request


@contextlib.contextmanager
def hydra_raises() -> Iterator[None]:
    """Have Hydra pass exceptions on, where it would print them and exit with 1 itself."""
    wanted = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
        if wanted is not None:
            os.environ["HYDRA_FULL_ERROR"] = wanted


def start(argv: list[str]) -> None:
    """Run one command line."""
    for name, show in ABOUT_RUNS.items():
        if argv[: len(name)] == list(name):
            show(argv[len(name) :])
            return
    if "--version" in argv:
        print(words.version())
        return
    command, sys.argv[1:] = read_arguments(argv)
    requests, sweep_folder = compose(argv)
    if sweep_folder is None:
        for request in requests:  # none at all after --help or --cfg
            COMMANDS[command](request)
    elif command == "train" and requests[0].experiment.sweep.sampler is not None:
        from sft_exp.sweeps import search  # optuna is an extra

        search.run(requests[0], sweep_folder, compose_one)
    elif command == "train":
        sweep.run(requests, sweep_folder, Chosen.launcher)
    elif command == "plan":
        plan_table.compare(requests)
    else:
        for number, request in enumerate(requests):
            print(f"\n--- job {number}: {' '.join(request.overrides)}")
            COMMANDS[command](request)


def main() -> None:
    """Run one command; a user's mistake ends with its sentences and exit code 2, a fault of ours with a traceback."""
    try:
        start(sys.argv[1:])
    except (HydraException, OmegaConfBaseException) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        report(ConfigError(explain.explain(error)))
    except SftExpError as error:
        report(error)
    except BrokenPipeError:  # `plan | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
