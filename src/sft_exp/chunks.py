"""Encodes conversations chunk by chunk, in this process or in several; the order stays."""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from sft_exp.conversation import Conversation
from sft_exp.errors import ConfigError
from sft_exp.labels import Encoder, Result
from sft_exp.rows import Place

_SIZE = 256
Chunk = list[tuple[Place, Conversation]]


def encoded(
    items: Iterator[tuple[Place, Conversation]], encoder: Encoder, processes: int
) -> Iterator[tuple[Chunk, list[Result]]]:
    """Yield each chunk with its results."""
    if processes > 1:
        yield from _encoded_by_many(_chunks(items), encoder, processes)
        return
    for chunk in _chunks(items):
        yield chunk, encoder.encode(_conversations(chunk))


def _chunks(items: Iterator[tuple[Place, Conversation]]) -> Iterator[Chunk]:
    while chunk := list(islice(items, _SIZE)):
        yield chunk


def _conversations(chunk: Chunk) -> list[Conversation]:
    return [conversation for _, conversation in chunk]


def _encoded_by_many(chunks: Iterable[Chunk], encoder: Encoder, processes: int) -> Iterator[tuple[Chunk, list[Result]]]:
    # fork: the children take the tokenizer as it is, and nothing has to import the main module again
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _adopt, (encoder,)) as pool:
        waiting: deque[tuple[Chunk, Future[list[Result]]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, pool.submit(_encode_in_child, _conversations(chunk))))
                if len(waiting) > 2 * processes:  # no more rows in memory than keep the children busy
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()
        except BrokenProcessPool as error:
            raise ConfigError(
                f"dataset.num_proc={processes} lost a process that tokenised, as for want of memory: lower it."
            ) from error


_child_encoder: Encoder


def _adopt(encoder: Encoder) -> None:
    global _child_encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each child has one core
    _child_encoder = encoder


def _encode_in_child(conversations: list[Conversation]) -> list[Result]:
    return _child_encoder.encode(conversations)
