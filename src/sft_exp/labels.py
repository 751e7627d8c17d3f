"""Conversation -> token ids and labels.

A chat is rendered once as text by the tokenizer's template. Where an assistant turn begins is found by prefix
differencing: the rendering of the messages before it, with the generation prompt, must be a prefix of the whole.
The turn ends with the template's end token, which is trained; white space after it is not. The text is tokenised
whole, so that ids are those of inference, and characters are mapped to tokens by offsets.
"""

from __future__ import annotations

import copy
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sft_exp.errors import ConfigError
from sft_exp.normalize import BadRow, Conversation, Message
from sft_exp.schema import Loss

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
_PROBE = [{"role": "user", "content": "Qprobe"}, {"role": "assistant", "content": "Aprobe"}]
_THINK = re.compile(r"</?think>")


@dataclass(slots=True)
class Encoded:
    """One row for the trainer, with what the report counts."""

    input_ids: list[int]
    labels: list[int]
    trained_tokens: int
    truncated: bool
    """Longer than `max_length`: the rest was cut off."""
    answer_truncated: bool
    """Every trained token was cut off."""
    end_trained: bool
    """The end token of at least one turn is trained."""
    think_blocks: int
    """Reasoning blocks in the trained text."""
    control_text: bool
    """A message contains the text of a control token; it was tokenised as text."""


@dataclass(slots=True)
class _Layout:
    """Rendered text with the characters that are trained and those that must not become control tokens."""

    text: str
    end: int | None
    """Id of the token that closes a trained span."""
    trained: list[tuple[int, int]]
    plain: list[tuple[int, int]]


def chat_end_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The last token that is not white space which the chat template puts after an assistant turn."""
    return Encoder(tokenizer, max_length=1, loss=Loss.assistant).end_token if tokenizer.chat_template else None


def encode(conversation: Conversation, tokenizer: PreTrainedTokenizerBase, *, max_length: int, loss: Loss) -> Encoded:
    """Encodes one conversation; many are faster with one `Encoder`."""
    result = Encoder(tokenizer, max_length=max_length, loss=loss).encode([conversation])[0]
    if isinstance(result, Exception):
        raise result
    return result


class Encoder:
    """Encodes conversations with one tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_length: int, loss: Loss) -> None:
        if not tokenizer.is_fast:
            raise ConfigError(
                "the tokenizer has no tokenizer.json, which offsets need: set model.tokenizer to one with it"
            )
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._loss = loss
        self._backend = copy.deepcopy(tokenizer.backend_tokenizer)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.post_processor = None  # it may trim white space from offsets, which moves span borders
        self._bos = tokenizer.bos_token if self._adds_bos() else ""
        self._eos = tokenizer.eos_token or ""
        self._turn_start, self.end_text, probe = self._probe() if tokenizer.chat_template else ("", self._eos, "")
        self.end_token = self._end_token(self.end_text)
        self._control = self._control_pattern(probe)

    @property
    def identity(self) -> list[str]:
        """Everything about tokenizer and template that decides the ids."""
        return [self._backend.to_str(), str(self._tokenizer.chat_template), self._bos, self._eos]

    def encode(self, conversations: Sequence[Conversation]) -> list[Encoded | BadRow | ConfigError]:
        """Encodes each, or says why not: BadRow is the row's fault, ConfigError that of template or tokenizer."""
        layouts = [self._lay_out_safely(conversation) for conversation in conversations]
        good = [layout for layout in layouts if isinstance(layout, _Layout)]
        encodings = iter(self._tokenise(good))
        return [self._label(item, *next(encodings)) if isinstance(item, _Layout) else item for item in layouts]

    def _adds_bos(self) -> bool:
        ids = self._tokenizer("a").input_ids
        return bool(ids) and self._tokenizer.bos_token_id is not None and ids[0] == self._tokenizer.bos_token_id

    def _probe(self) -> tuple[str, str, str]:
        """What the template puts before and after an assistant turn (outer white space left out), and all it wrote."""
        try:
            whole, asked = self._render(_PROBE), self._render(_PROBE[:1])
            prompted = self._render(_PROBE[:1], prompt=True)
        except BadRow as error:
            raise ConfigError(
                f"the chat template fails on a plain question and answer ({error.detail}): "
                "mend it or set model.chat_template=FILE.jinja"
            ) from error
        start = prompted[len(asked) :] if prompted.startswith(asked) else ""
        return start, whole.rpartition("Aprobe")[2].strip(), whole + prompted

    def _end_token(self, text: str) -> int | None:
        """The last token of an end mark, if it is a control token: `>` of a mark in pieces would end any sentence."""
        ids = self._backend.encode(text, add_special_tokens=False).ids
        known = {*self._tokenizer.added_tokens_decoder, *self._tokenizer.all_special_ids}
        return ids[-1] if ids and ids[-1] in known else None

    def _control_pattern(self, probe: str) -> re.Pattern[str] | None:
        """Control tokens that the template writes; others, such as those of model.special_tokens, may be meant."""
        special = [token.content for token in self._tokenizer.added_tokens_decoder.values() if token.special]
        names = [name for name in special if name in probe or name in (self._bos, self._eos)]
        return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None

    def _render(self, messages: Sequence[Message], *, prompt: bool = False, tools: list[Any] | None = None) -> str:
        """Applies the chat template; anything may go wrong in it, and then the row is bad."""
        try:
            try:
                return self._apply(messages, prompt, tools)
            except TypeError:  # most templates write arguments as JSON, some join them as text
                return self._apply([_with_text_arguments(message) for message in messages], prompt, tools)
        except Exception as error:
            raise BadRow("refused_by_template", str(error) or type(error).__name__) from error

    def _apply(self, messages: Sequence[Message], prompt: bool, tools: list[Any] | None) -> str:
        made = self._tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt
        )
        return str(made)

    def _lay_out_safely(self, conversation: Conversation) -> _Layout | BadRow | ConfigError:
        try:
            return self._lay_out(conversation)
        except (BadRow, ConfigError) as error:
            return error

    def _lay_out(self, conversation: Conversation) -> _Layout:
        if conversation.kind == "text" or (conversation.kind != "chat" and not self._tokenizer.chat_template):
            return self._plain(conversation)
        if not self._tokenizer.chat_template:
            raise ConfigError(
                "a conversation, but the tokenizer has no chat template: set model.chat_template=FILE.jinja"
            )
        return self._chat(conversation)

    def _plain(self, conversation: Conversation) -> _Layout:
        """Text as it stands, closed by the end token; of a prompt and its completion the latter is trained."""
        if not self._eos:
            raise ConfigError(
                "the tokenizer has no end token (eos_token), so nothing can close plain text: give it one"
            )
        *prompt, text = [str(message["content"]) for message in conversation.messages]
        before = "".join(prompt)
        before = before if before.startswith(self._bos) else self._bos + before
        if not prompt and text.startswith(self._bos):
            before = ""
        whole = before + (text if text.endswith(self._eos) else text + self._eos)
        return _Layout(whole, self._tokenizer.eos_token_id, [(len(before), len(whole))], [])

    def _chat(self, conversation: Conversation) -> _Layout:
        messages = conversation.messages
        text = self._render(messages, tools=conversation.tools)
        layout = _Layout(text, self.end_token, [], [])
        at = 0
        for number, message in enumerate(messages):
            assistant = message["role"] == "assistant"
            start = self._turn_begin(conversation, number, text) if assistant else at
            found = self._find(message, number, text, start)
            at = max(at, found)
            if assistant:
                at = self._turn_stop(conversation, number, text, start, at)
                layout.trained.append((start, at))
            layout.plain.extend(self._control_text(message, text, start, found))
        return layout

    def _turn_begin(self, conversation: Conversation, number: int, text: str) -> int:
        """Where an assistant turn begins: behind what inference would prompt with."""
        if number == 0:  # templates cannot render an empty list
            begin = text.find(self._turn_start)
            return begin + len(self._turn_start) if begin >= 0 else 0
        before = self._render(conversation.messages[:number], prompt=True, tools=conversation.tools)
        if not text.startswith(before):
            raise ConfigError(
                f"the chat template renders message {number + 1} otherwise than it prompts for it (it may drop the "
                "reasoning of earlier turns): set model.chat_template=FILE.jinja to a template that keeps every turn"
            )
        return len(before)

    def _turn_stop(self, conversation: Conversation, number: int, text: str, start: int, at: int) -> int:
        """Where an assistant turn ends: behind what the template writes after its text when it is the last turn."""
        messages = conversation.messages
        is_last = number + 1 == len(messages)
        closed = text if is_last else self._render(messages[: number + 1], tools=conversation.tools)
        end = closed[self._find(messages[number], number, closed, start) :].rstrip()
        # Some templates close the last turn with one mark more than the others.
        mark = next((mark for mark in (end, *end.split()[:1]) if text.startswith(mark, at)), "")
        return at + len(mark)

    def _find(self, message: Message, number: int, text: str, start: int) -> int:
        """End of the message in the text; a template may drop a role, strip reasoning or leave out tool calls."""
        at = start
        for piece in _pieces(message):
            found = text.find(piece, at)
            if found < 0 and message["role"] == "tool":  # some templates write a tool's output as JSON
                piece = json.dumps(piece, ensure_ascii=False)[1:-1]
                found = text.find(piece, at)
            if found < 0 and piece not in text:
                raise self._lost(message, number)
            at = found + len(piece) if found >= 0 else at
        return at

    def _lost(self, message: Message, number: int) -> BadRow | ConfigError:
        if message["role"] == "assistant" and ("</think>" in message["content"] or "reasoning_content" in message):
            return ConfigError(
                f"the chat template drops the reasoning of message {number + 1}, so it would be trained away: "
                "set model.chat_template=FILE.jinja to a template that keeps <think> blocks"
            )
        return BadRow("lost_by_template", f"the chat template drops text of message {number + 1} ({message['role']})")

    def _control_text(self, message: Message, text: str, start: int, end: int) -> list[tuple[int, int]]:
        if not self._control or not self._control.search(message["content"]):
            return []
        begin = text.find(message["content"].strip(), start, end)
        if begin < 0:
            return []
        return [match.span() for match in self._control.finditer(text, begin, begin + len(message["content"].strip()))]

    def _tokenise(self, layouts: Sequence[_Layout]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        encodings = self._backend.encode_batch([layout.text for layout in layouts], add_special_tokens=False)
        return [
            self._tokenise_with_text(layout) if layout.plain else (encoding.ids, encoding.offsets)
            for layout, encoding in zip(layouts, encodings, strict=True)
        ]

    def _tokenise_with_text(self, layout: _Layout) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokenises names of control tokens in messages as text: the cuts around them cost merges, but only there."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        cuts = [0, *(at for span in layout.plain for at in span), len(layout.text)]
        for number, (begin, end) in enumerate(pairwise(cuts)):
            self._backend.encode_special_tokens = number % 2 == 1
            encoding = self._backend.encode(layout.text[begin:end], add_special_tokens=False)
            ids += encoding.ids
            offsets += [(begin + first, begin + last) for first, last in encoding.offsets]
        self._backend.encode_special_tokens = False
        return ids, offsets

    def _label(self, layout: _Layout, ids: list[int], offsets: list[tuple[int, int]]) -> Encoded | BadRow:
        labels = list(ids) if self._loss is Loss.all else [IGNORED] * len(ids)
        tokens = []
        for begin, stop in layout.trained:
            # A token across the begin holds the answer's first characters, so it is trained.
            first = bisect_right(offsets, begin, key=lambda span: span[1])
            after = bisect_left(offsets, stop, key=lambda span: span[0])
            labels[first:after] = ids[first:after]
            tokens.append((first, after - 1))
        if not any(label != IGNORED for label in labels[1:]):  # the first token is never predicted
            return BadRow("no_trainable_token", "no token of it would be trained")
        kept = labels[: self._max_length]
        return Encoded(
            input_ids=ids[: self._max_length],
            labels=kept,
            trained_tokens=sum(label != IGNORED for label in kept[1:]),
            truncated=len(ids) > self._max_length,
            answer_truncated=all(first >= self._max_length for first, _ in tokens),
            end_trained=any(ids[last] == layout.end for _, last in tokens if 0 < last < self._max_length),
            think_blocks=sum(layout.text.count("</think>", *span) for span in layout.trained),
            control_text=bool(layout.plain),
        )


def _pieces(message: Message) -> list[str]:
    """Texts of a message that must occur in the rendering; white space around them and their think tags may change."""
    texts = [message.get("reasoning_content", ""), *_THINK.split(message["content"])]
    texts += [call["function"]["name"] for call in message.get("tool_calls", [])]
    return [stripped for text in texts if (stripped := text.strip())]


def _with_text_arguments(message: Message) -> Message:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}}
        for call in message.get("tool_calls", [])
        if not isinstance(arguments := call["function"]["arguments"], str)
    ]
    return {**message, "tool_calls": calls} if calls else message
