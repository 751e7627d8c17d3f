"""Places that the run writes to or reads from: disk, tracking server, model hub."""

from collections.abc import Mapping

from sft_exp import hub_access, sizes, tracking_store
from sft_exp.doctor.line import Line, fail, judged, ok, skip, warn
from sft_exp.host import GIB
from sft_exp.rules import machine as rules
from sft_exp.schema import Experiment, TrackingKind


def disk(experiment: Experiment) -> list[Line]:
    """Free space against the final model and all checkpoints that are kept, one more while it is written."""
    need = sizes.disk_bytes(experiment)
    what = f"this run writes at most {need / GIB:.1f} GiB" if need else "what this run writes is not known beforehand"
    sentences = list(rules.outputs(experiment))
    free = 0 if sentences else rules.free_bytes(experiment)
    return judged("disk", sentences, f"{free / GIB:.1f} GiB free in outputs; {what}")


def tracker(experiment: Experiment) -> list[Line]:
    """Whether a tracking server answers."""
    settings = experiment.tracking
    if settings.kind is TrackingKind.none:
        return [skip("tracking", "tracking=none")]
    if not (settings.uri or "").startswith("http"):
        return [ok("tracking", "a file under outputs, no server")]
    sentence = tracking_store.unreachable(settings)
    return judged("tracking", [sentence] if sentence else [], "the server answers")


def model_hub(experiment: Experiment, env: Mapping[str, str]) -> Line:
    """Whether what must come from the hub can come, or is in the cache."""
    wanted = hub_access.needed(experiment)
    if not wanted:
        return skip("hub", "model and data are on this machine")
    missing = [repository for repository in wanted if not hub_access.cached(repository, env)]
    names = ", ".join(name.partition("--")[2].replace("--", "/") for name in missing)
    if hub_access.offline(env):
        if missing:
            return fail("hub", f"HF_HUB_OFFLINE is set and {names} is not in the cache", "unset it, or give a folder")
        return ok("hub", "offline mode; everything is in the cache")
    problem = hub_access.no_answer(env)
    if problem is None:
        return ok("hub", f"{hub_access.endpoint(env)} answers{f'; {names} will be downloaded' if missing else ''}")
    if missing:
        return fail(
            "hub", f"{problem} and {names} is not in the cache", "set HF_ENDPOINT to a mirror, or give a folder"
        )
    return warn("hub", f"{problem}; everything is in the cache", "export HF_HUB_OFFLINE=1, which saves the retries")
