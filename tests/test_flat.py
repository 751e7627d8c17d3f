"""Rows without padding: the same conversations, in the same order, with the same losses as in a padded batch."""

import gzip
import json
from pathlib import Path

import pytest

from sft_exp import hw
from sft_exp.schema import Attention
from training import logged, train

pytestmark = pytest.mark.slow
MORE = ("dataset.eval_fraction=0.2", "train.eval_steps=2", "train.max_steps=4", "train.micro_batch=4")


def test_flat_rows_train_as_padded_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    padded = train(tmp_path / "padded", *MORE, conversations=60)
    # On the CPU sdpa stands in: transformers keeps the conversations of a flat row apart for it too.
    monkeypatch.setattr(hw, "FLAT", (Attention.sdpa,))
    flat = train(tmp_path / "flat", *MORE, conversations=60)
    for key in ("train/loss", "train/grad_norm", "eval/loss", "eval/p_eos"):
        assert logged(flat, key) == pytest.approx(logged(padded, key), rel=2e-5)
    for key in ("train/trained_tokens", "train/tokens_seen", "perf/samples_per_second"):
        assert len(logged(flat, key)) == len(logged(padded, key)) == 4
    assert logged(flat, "train/trained_tokens") == logged(padded, "train/trained_tokens")
    assert logged(flat, "train/tokens_seen") == logged(padded, "train/tokens_seen")
    assert set(logged(flat, "perf/padding_share")) == {0}
    assert min(logged(padded, "perf/padding_share")) > 0.05


# torch's compiler looks at deprecated attributes on its way; an error there would be taken for one of the model.
@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_train_as_written_ones(tmp_path: Path) -> None:
    plain, compiled = (train(tmp_path / str(on), f"train.compile={on}", "train.max_steps=3") for on in (False, True))
    assert logged(compiled) == pytest.approx(logged(plain), rel=2e-5)


def test_profile_is_left_in_the_run_folder(tmp_path: Path) -> None:
    run = train(tmp_path, "train.profile=true", "train.max_steps=4")
    text = run.profile.read_text()
    assert "3 steps" in text.splitlines()[0]
    assert "aten::addmm" in text or "aten::mm" in text
    events = json.loads(gzip.decompress(run.trace.read_bytes()))["traceEvents"]
    assert sum(str(event.get("name", "")).startswith("Optimizer.step") for event in events) == 3
