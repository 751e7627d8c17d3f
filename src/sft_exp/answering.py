"""One conversation with one model: the chat template, token after token, and what ended an answer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, TextStreamer

from sft_exp.conversation import BadRow, Message
from sft_exp.errors import ConfigError
from sft_exp.preview import visible
from sft_exp.rendering import Renderer

Write = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """What a model said and, unless it ended by itself, what ended it."""

    text: str
    tokens: int
    """New tokens, an end token included."""
    cut: bool = False
    """Ended by the limit of its tokens."""
    full: bool = False
    """Ended by the model's last position."""
    stopped: bool = False
    """Ended by Ctrl-C."""


@dataclass
class Voice:
    """A model with its own course of the conversation."""

    name: str
    network: Any
    tokenizer: PreTrainedTokenizerFast
    entering: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What has to be entered while it speaks: a switched-off adapter, for a base."""
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def restart(self) -> None:
        """Forget the conversation."""
        self.messages.clear()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def answer(self, text: str, write: Write, *, tokens: int, temperature: float) -> Answer:
        """Answer the next message, passing text to `write` as it comes; 0 as temperature takes the likeliest token.

        Raises ConfigError where the chat template refuses the conversation or no position is left for an answer.
        """
        asked: Message = {"role": "user", "content": text}
        inputs = self._encode([*self.messages, asked]).to(self.network.device)
        room = self._positions() - inputs["input_ids"].shape[1]
        if room < 1:
            raise ConfigError(f"the conversation fills the model's {self._positions()} positions: start a new one.")
        said = _Said(self.tokenizer, write)
        stopped = False
        try:
            with self.entering():
                self.network.generate(
                    **inputs, max_new_tokens=min(tokens, room), streamer=said, **_sampling(temperature)
                )
        except KeyboardInterrupt:
            said.end()
            stopped = True
        if self.tokenizer.chat_template and said.text:
            self.messages += [asked, {"role": "assistant", "content": said.text}]
        count, ended = len(said.ids), bool(said.ids) and said.ids[-1] in self._end_tokens()
        return Answer(
            said.text, count, stopped=stopped, cut=not (ended or stopped) and count >= tokens,
            full=not (ended or stopped) and count < tokens,
        )  # fmt: skip

    def _encode(self, messages: list[Message]) -> Any:
        """Token ids; without a chat template those of the last text, which is then continued."""
        if not self.tokenizer.chat_template:
            return self.tokenizer(messages[-1]["content"], return_tensors="pt", return_token_type_ids=False)
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system is not None else []
        try:
            text = Renderer(self.tokenizer).text([*system, *messages], prompt=True)
        except BadRow as error:
            raise ConfigError(f"the chat template refuses this conversation ({error.detail}).") from error
        return self.tokenizer(text, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False)

    def _positions(self) -> int:
        return int(getattr(self.network.config.get_text_config(), "max_position_embeddings", 2**31))

    def _end_tokens(self) -> list[int]:
        ends = self.network.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [ends]


class _Said(TextStreamer):  # type: ignore[misc]
    """Collects what is generated and passes its text on; control characters may not command a terminal."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, write: Write) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.ids: list[int] = []
        self.text = ""
        self._write = write

    def put(self, value: torch.Tensor) -> None:
        if not self.next_tokens_are_prompt:
            self.ids += value.tolist()
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        self._write(visible(text))


def _sampling(temperature: float) -> dict[str, Any]:
    if temperature > 0:
        return {"do_sample": True, "temperature": temperature}
    return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
