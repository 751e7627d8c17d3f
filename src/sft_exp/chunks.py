"""Encodes conversations chunk by chunk, in this process or in several; the order stays."""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from sft_exp.conversation import Conversation
from sft_exp.errors import ConfigError
from sft_exp.labels import Encoder, Result
from sft_exp.rows import Place

_SIZE = 256
Item = tuple[Place, int, Conversation]
"""Place of a row, number of its source, what it says."""
Chunk = list[Item]


def encoded(items: Iterator[Item], encoder: Encoder, processes: int) -> Iterator[tuple[Chunk, list[Result]]]:
    """Yield each chunk with its results."""
    if processes > 1:
        yield from _encoded_by_many(_chunks(items), encoder, processes)
        return
    # The tokenizer works outside the interpreter's lock: meanwhile the next rows are read, and those after it rendered.
    with ThreadPoolExecutor(2) as pool:
        waiting: deque[tuple[Chunk, Future[list[Result]]]] = deque()
        for chunk in _chunks(items):
            waiting.append((chunk, pool.submit(encoder.encode, _conversations(chunk))))
            if len(waiting) > 3:
                yield _next(waiting)
        while waiting:
            yield _next(waiting)


def _next(waiting: "deque[tuple[Chunk, Future[list[Result]]]]") -> tuple[Chunk, list[Result]]:
    chunk, future = waiting.popleft()
    return chunk, future.result()


def _chunks(items: Iterator[Item]) -> Iterator[Chunk]:
    while chunk := list(islice(items, _SIZE)):
        yield chunk


def _conversations(chunk: Chunk) -> list[Conversation]:
    return [conversation for *_, conversation in chunk]


def _encoded_by_many(chunks: Iterable[Chunk], encoder: Encoder, processes: int) -> Iterator[tuple[Chunk, list[Result]]]:
    # fork: the children take the tokenizer as it is, and nothing has to import the main module again
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _adopt, (encoder,)) as pool:
        waiting: deque[tuple[Chunk, Future[list[Result]]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, pool.submit(_encode_in_child, _conversations(chunk))))
                if len(waiting) > 2 * processes:  # no more rows in memory than keep the children busy
                    yield _next(waiting)
            while waiting:
                yield _next(waiting)
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
