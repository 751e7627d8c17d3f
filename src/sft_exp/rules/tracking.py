"""Rules about the tracker."""

import re
from collections.abc import Iterator

from sft_exp.schema import Experiment, TrackingKind


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each reason why nothing could be tracked."""
    tracking = experiment.tracking
    if tracking.kind is TrackingKind.none and tracking.uri:
        yield f"tracking.uri={tracking.uri} has no effect with tracking=none: use tracking=mlflow."
    if tracking.uri and re.match(r"\w+://[^/]*:[^/]*@", tracking.uri):
        yield (
            "tracking.uri holds a password, which would stand in every record: "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
        )
    if tracking.uri and re.match(r"(file:|\.|/)", tracking.uri):
        yield (
            f"tracking.uri={tracking.uri} is a file store, which MLflow no longer writes: use "
            "sqlite:////absolute/path.db or http://HOST:5000."
        )
