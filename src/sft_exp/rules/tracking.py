"""Rules about the tracker: MLflow says what it does not take only when the run has begun."""

import importlib.metadata
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from sft_exp.schema import Experiment, TrackingKind

SERVERS = ("http", "https")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
USE = "use sqlite:////absolute/path.db or http://HOST:5000"
NAME = re.compile(r"[/\w.\- :]{1,250}")
"""Names that MLflow takes for a tag (mlflow/utils/validation.py)."""
LONGEST_EXPERIMENT = 500
"""Characters; MLflow's MAX_EXPERIMENT_NAME_LENGTH."""


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each reason why nothing could be tracked."""
    tracking = experiment.tracking
    if tracking.kind is TrackingKind.none:
        if tracking.uri:
            yield f"tracking.uri={tracking.uri} has no effect with tracking=none: use tracking=mlflow."
        return
    if tracking.uri and (sentence := uri_problem(tracking.uri)):
        yield sentence
    if not 0 < len(tracking.experiment.strip()) <= LONGEST_EXPERIMENT:
        yield (
            f"tracking.experiment='{tracking.experiment[:20]}' is no name of an experiment: give 1 to "
            f"{LONGEST_EXPERIMENT} characters, or leave it out for sft_exp."
        )
    for name in tracking.tags:
        if not NAME.fullmatch(name):
            yield f"tracking.tags has a tag named '{name}': use letters, digits, '_', '-', '.', ' ', ':' and '/'."


def uri_problem(uri: str) -> str | None:
    """One sentence for an address that MLflow would not open."""
    if re.match(r"\w+(\+\w+)?://[^/]*:[^/]*@", uri):
        return (
            "tracking.uri holds a password, which would stand in every record: "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
        )
    if re.match(r"(file:|\.|/|~)", uri):
        return f"tracking.uri={uri} is a file store, which MLflow no longer writes: {USE}."
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"tracking.uri={uri} is no address ({error}): {USE}."
    scheme = parts.scheme.partition("+")[0]
    if scheme in SERVERS:
        return None if host else f"tracking.uri={uri} names no host: {USE}."
    if scheme == "sqlite" and not re.fullmatch(r"sqlite(\+\w+)?:///[^:].*", uri):
        return f"tracking.uri={uri} names no file: {USE}."
    if scheme in DATABASES or uri == "databricks" or scheme == "databricks" or scheme in _plugins():
        return None
    return f"tracking.uri={uri} is no tracking store of MLflow: {USE}."


def _plugins() -> set[str]:
    """Kinds of stores that packages add to MLflow."""
    return {entry.name for entry in importlib.metadata.entry_points(group="mlflow.tracking_store")}
