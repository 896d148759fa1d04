"""Texts that appear while they are generated."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeAlias, TypeVar

from kvscatter._session import Generated
from kvscatter._text import Pieces, Stops, Tokenizer

Piece = TypeVar("Piece", str, tuple[int, str])

Watch: TypeAlias = Callable[[list[list[int]]], list[tuple[int, int]]]
"""A function that takes the new tokens of each prompt. It returns pairs of a prompt and the number of new tokens after
which the prompt ends. While prompts are computed, the list is empty."""


class Texts:
    """The texts after the prompts of a generation."""

    def __init__(self, tokenizer: Tokenizer, prompts: int, stop: Sequence[str]) -> None:
        self._texts = [(Pieces(tokenizer), Stops(stop)) for _ in range(prompts)]
        self._parts: list[list[str]] = [[] for _ in range(prompts)]
        self._running = set(range(prompts))

    def push(self, new: list[list[int]]) -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
        """Takes the new tokens of each prompt. Returns the new pieces of text, and what `Watch` returns."""
        pieces, ends = [], []
        for prompt, tokens in enumerate(new):
            if prompt not in self._running:
                continue
            decoder, stops = self._texts[prompt]
            parts = []
            for count, token in enumerate(tokens, 1):
                parts.append(stops.push(decoder.push(token)))
                if stops.has_stopped:
                    ends.append((prompt, count))
                    break
            # A prompt that ended earlier has no new tokens.
            if stops.has_stopped or not tokens:
                parts.append(self._end(prompt))
            pieces += self._add(prompt, "".join(parts))
        return pieces, ends

    def finish(self) -> list[tuple[int, str]]:
        """Returns the last pieces of text."""
        return [piece for prompt in sorted(self._running) for piece in self._add(prompt, self._end(prompt))]

    def texts(self) -> list[str]:
        """Returns the text of each prompt so far."""
        return ["".join(parts) for parts in self._parts]

    def _end(self, prompt: int) -> str:
        self._running.discard(prompt)
        decoder, stops = self._texts[prompt]
        return stops.push(decoder.finish()) + stops.finish()

    def _add(self, prompt: int, piece: str) -> list[tuple[int, str]]:
        self._parts[prompt].append(piece)
        return [(prompt, piece)] if piece else []


class _Closed(Exception):
    """Ends the generation of a stream that was closed."""


Item: TypeAlias = tuple[tuple[int, str], bool] | Generated | BaseException | None


class _Work:
    """The thread that generates. It computes at most one step more than its readers have taken.

    A finalizer may close it anywhere, so it waits for no lock, and uses only queues that finalizers can use.
    """

    def __init__(self, run: Callable[[Watch], Generated], texts: Texts) -> None:
        self._run, self._texts = run, texts
        # Pieces, each with whether it is the last one of its step. Then the result or an exception, and None after the
        # stream was closed.
        self._pieces: SimpleQueue[Item] = SimpleQueue()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False
        self._unstarted = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="kvscatter generation", daemon=True)

    def take(self) -> tuple[int, str] | Generated | None:
        """Waits for the next piece, the result or an exception. Returns None after the stream was closed."""
        # The first reader starts the thread. Nothing releases this lock.
        if self._unstarted.acquire(blocking=False):
            self._thread.start()
        item = self._pieces.get()
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, tuple):
            piece, is_last = item
            if is_last:
                self._permits.put(None)
            return piece
        if item is None:
            # Other readers may wait.
            self._pieces.put(None)
        return item

    def close(self) -> None:
        """Ends the generation after the current run of the model."""
        self._is_closed = True
        self._permits.put(None)
        self._pieces.put(None)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        try:
            generated = self._run(self._watch)
            self._put(self._texts.finish())
            self._pieces.put(generated)
        except _Closed:
            pass
        except BaseException as error:
            self._pieces.put(error)

    def _watch(self, new: list[list[int]]) -> list[tuple[int, int]]:
        pieces, ends = self._texts.push(new)
        if pieces:
            self._put(pieces)
            self._permits.get()
        if self._is_closed:
            raise _Closed
        return ends

    def _put(self, pieces: list[tuple[int, str]]) -> None:
        for number, piece in enumerate(pieces, 1):
            self._pieces.put((piece, number == len(pieces)))


class Stream(Iterator[Piece], Generic[Piece]):
    """The pieces of a text that is being generated, an iterator.

    The pieces together are the whole text, and no piece ends in the middle of a character. For a list of prompts, the
    iterator returns pairs of the index of a prompt and a piece of the text after it.

    A thread generates while the stream is read, at most one step ahead. It starts at the first piece. It ends at the
    end of the text, after an exception, when the stream is closed or deleted, and when Python exits. If several threads
    read a stream, each piece goes to one of them, and so does an exception.

    Attributes:
        generated: The result of the generation after the last piece, before that None.
    """

    generated: Generated | None

    def __init__(
        self,
        run: Callable[[Watch], Generated],
        texts: Texts,
        piece_of: Callable[[tuple[int, str]], Piece],
    ) -> None:
        self.generated = None
        work = _Work(run, texts)
        self._work: _Work | None = work
        self._texts = texts
        self._piece_of: Callable[[tuple[int, str]], Piece] = piece_of
        self._finalizer: Callable[[], object] = weakref.finalize(self, work.close)

    def __iter__(self) -> Stream[Piece]:
        return self

    def __next__(self) -> Piece:
        work = self._work
        if work is None:
            raise StopIteration
        try:
            taken = work.take()
        except BaseException:
            # Ctrl-C, or an error of the generation.
            self.close()
            raise
        if isinstance(taken, tuple):
            return self._piece_of(taken)
        if taken is not None:
            self.generated = taken.with_texts(self._texts.texts())
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Ends the generation, and returns when it has ended."""
        self._work = None
        self._finalizer()

    def __enter__(self) -> Stream[Piece]:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()
