"""`python loader.py FOLDER`: what the installed transformers make of a saved folder, as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

TEXT = "a<chunk>b</chunk> 你好，世界 <think>\nx</think>\n<|im_start|>user<|im_end|>"
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nh\n</think>\n\nHello."}]


def look(folder: Path) -> dict[str, Any]:
    """Ids, texts and tokens; of a model besides its logits."""
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT).input_ids
    found = {
        "ids": ids,
        "visible": tokenizer.decode(ids, skip_special_tokens=True),
        "template": tokenizer.chat_template,
        "rendered": tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True),
        "special": sorted(tokenizer.all_special_tokens),
        "end": tokenizer.eos_token,
        "pad": tokenizer.pad_token,
        "begin": tokenizer.bos_token,
        "size": len(tokenizer),
    }
    return found | (_model(folder) if (folder / "config.json").exists() else {})


def _model(folder: Path) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = network(torch.arange(60)[None]).logits
    return {
        "logits": logits.flatten()[:: logits.numel() // 50].tolist(),
        "ends": network.generation_config.eos_token_id,
    }


if __name__ == "__main__":
    import transformers

    print(json.dumps({"version": transformers.__version__, **look(Path(sys.argv[1]))}))
