"""Loading a model without the libraries' progress bars, notices and needless imports."""

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator

from sft_exp.schema import Experiment
from sft_exp.worker import not_needed


@contextlib.contextmanager
def libraries(experiment: Experiment) -> Iterator[None]:
    """Import and load without their words; what they say in errors is raised all the same."""
    for library in ["deepspeed", *not_needed(experiment)]:  # DeepSpeed trains; nothing here does
        sys.modules.setdefault(library, None)  # type: ignore[arg-type]
    from transformers.utils import logging as transformers_logging

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        yield
