"""Texts that appear while they are generated."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from kvscatter._session import Generated
from kvscatter._text import Pieces, Stops, Tokenizer

__all__ = ["Stream", "Texts"]

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


class _Work:
    """The thread that generates. It computes at most one piece more than its caller has read.

    A finalizer may close it anywhere, so it uses only queues that finalizers can use.
    """

    def __init__(self, run: Callable[[Watch], Generated], texts: Texts) -> None:
        self._run, self._texts = run, texts
        # The pieces of each step, at last the result or an exception.
        self.steps: SimpleQueue[list[tuple[int, str]] | Generated | BaseException] = SimpleQueue()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="kvscatter generation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def permit(self) -> None:
        """Allows one more piece."""
        self._permits.put(None)

    def close(self) -> None:
        """Ends the generation after the current run of the model."""
        self._is_closed = True
        self.permit()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        try:
            generated = self._run(self._watch)
            self.steps.put(self._texts.finish())
            self.steps.put(generated)
        except BaseException as error:
            self.steps.put(error)

    def _watch(self, new: list[list[int]]) -> list[tuple[int, int]]:
        pieces, ends = self._texts.push(new)
        if pieces:
            self.steps.put(pieces)
            self._permits.get()
        if self._is_closed:
            raise _Closed
        return ends


class Stream(Iterator[Piece], Generic[Piece]):
    """The pieces of a text that is being generated, an iterator.

    The pieces together are the whole text, and no piece ends in the middle of a character. For a list of prompts, the
    iterator returns pairs of the index of a prompt and a piece of the text after it.

    A thread generates while the stream is read, at most one piece ahead. It starts at the first piece. It ends at the
    end of the text, after an exception, when the stream is closed or deleted, and when Python exits.

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
        self._ready: list[tuple[int, str]] = []
        self._is_started = False
        self._finalizer: Callable[[], object] = weakref.finalize(self, work.close)

    def __iter__(self) -> Stream[Piece]:
        return self

    def __next__(self) -> Piece:
        while not self._ready:
            if self._work is None:
                raise StopIteration
            try:
                self._read(self._work)
            except BaseException:
                # Ctrl-C, or an error of the generation.
                self.close()
                raise
        return self._piece_of(self._ready.pop(0))

    def close(self) -> None:
        """Ends the generation, and returns when it has ended."""
        self._work, self._ready = None, []
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

    def _read(self, work: _Work) -> None:
        """Waits for the next step."""
        if not self._is_started:
            self._is_started = True
            work.start()
        step: Any = work.steps.get()
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, Generated):
            self.close()
            self.generated = step.with_texts(self._texts.texts())
        else:
            self._ready = step
            work.permit()
