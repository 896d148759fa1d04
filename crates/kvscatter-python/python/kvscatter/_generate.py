"""Generation after texts, chats and token ids."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from kvscatter import _native
from kvscatter._session import Generated
from kvscatter._stream import Stream, Texts, Watch
from kvscatter._text import TextFiles, Tokenizer
from kvscatter._typing import GenerateOptions, Indices, ModelAndGenerateOptions, ModelOptions
from kvscatter.errors import ElementTypeError, OptionError

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def generate(
    path: str | PathLike[str],
    prompts: str,
    max_new_tokens: int | None = None,
    *,
    stream: Literal[True],
    stop: str | Sequence[str] = (),
    prefix: str | PathLike[str] | None = None,
    save_prefix: str | PathLike[str] | None = None,
    **options: Unpack[ModelAndGenerateOptions],
) -> Stream[str]: ...
@overload
def generate(
    path: str | PathLike[str],
    prompts: list[str] | tuple[str, ...],
    max_new_tokens: int | None = None,
    *,
    stream: Literal[True],
    stop: str | Sequence[str] = (),
    prefix: str | PathLike[str] | None = None,
    save_prefix: str | PathLike[str] | None = None,
    **options: Unpack[ModelAndGenerateOptions],
) -> Stream[tuple[int, str]]: ...
@overload
def generate(
    path: str | PathLike[str],
    prompts: Iterable[str | Indices],
    max_new_tokens: int | None = None,
    *,
    stream: Literal[False] = False,
    stop: str | Sequence[str] = (),
    prefix: str | PathLike[str] | None = None,
    save_prefix: str | PathLike[str] | None = None,
    **options: Unpack[ModelAndGenerateOptions],
) -> Generated: ...
def generate(
    path: str | PathLike[str],
    prompts: Any,
    max_new_tokens: int | None = None,
    *,
    stream: bool = False,
    stop: str | Sequence[str] = (),
    prefix: str | PathLike[str] | None = None,
    save_prefix: str | PathLike[str] | None = None,
    **options: Unpack[ModelAndGenerateOptions],
) -> Any:
    """Continues prompts, all in one batch, in ONNX Runtime. By default, every token is the most likely one.

    To continue several times with one loaded model, use ``Generator``.

    Args:
        path: The model, an ONNX file or the folder of an export. If its caches grow or ``GroupQueryAttention`` writes
            them, it is converted to static caches once, and the conversion is kept in the user's cache folder. Texts
            need the files of the tokenizer in the same folder.
        prompts: A text, a list of texts, or a list of prompts of token ids. Such a prompt is a sequence of integers, or
            an integer array of one dimension.
        max_new_tokens: The maximum number of tokens to generate for each prompt. With None, a prompt ends with an end
            token or when the cache is full.
        stream: Whether to return the text piece by piece while it is generated.
        stop: A text or several, before which a generated text ends. If some overlap, the one that ends first counts.
        prefix: A file of a saved prompt, whose tokens come before those of every prompt. The tokens that begin a text
            are not added again.
        save_prefix: A file that the prompt is saved to. There must be one prompt.
        convert: Whether to convert the model. False runs it as it was exported.
        max_seq: The number of slots of a conversion. The default is the number of tokens that the model supports, at
            most 4096.
        cache_type: The type of the caches in a conversion: "float32", "float16", "bfloat16" or "int8". The default is
            that of the export.
        rotation: Whether keys and queries are rotated before keys become int8, which reduces the error of int8.
        capacity, threads, memory, onnxruntime, plugin: See ``KvSession``.
        do_sample: Whether to draw tokens at random. ``temperature``, ``top_k``, ``top_p``, ``min_p`` and ``seed`` have
            no effect without it.
        temperature: The number that divides the logits, above 0. Below 1 it makes likely tokens more likely.
        top_k: The number of most likely tokens that may be drawn. 0 allows all tokens.
        top_p: Allows the fewest most likely tokens whose probabilities sum to at least this number, above 0 and at
            most 1.
        min_p: Allows tokens that have at least this part of the probability of the most likely token, from 0 to 1.
        repetition_penalty: The number that divides the positive logits of tokens that occurred before, and multiplies
            the negative ones, above 0. Above 1 it makes repetitions less likely.
        seed: The seed of the random numbers. The same seed gives the same tokens after a prompt, also with other
            prompts in the batch. Equal prompts in one call get different tokens.
        eos: Tokens after which a prompt ends. For texts, the default is the end tokens of the model.
        chunk: The maximum number of tokens of one prompt in a run of the model.
        draft: The maximum number of drafted tokens of each sample in a step, which verifies them. If the last tokens
            of a sample occurred earlier in its text, the draft is a copy of what followed them there (prompt
            lookup). Each step drafts as many tokens as are expected to give the most tokens for its cost.
        progress: A function that is called after the prompts and after every later step. Its arguments are the
            number of tokens generated for each prompt (with drafts, the smallest number among the prompts that
            have not ended) and the number of prompts that have not ended. An exception in it ends the generation.

    Ctrl-C interrupts between two steps.

    Returns:
        ``Generated``: the tokens after each prompt, their texts if the prompts are texts, and the cost of generating
        them. With ``stream=True``, an iterator of the pieces of the text after one text, or of pairs of an index and a
        piece for a list of texts. ``Stream.close`` ends it early.

    Raises:
        SessionError, OptionError: For the same reasons as ``KvSession``. ``SessionError`` is also raised if a folder
            contains no model, if the model cannot be converted, or if a file of the tokenizer is missing or wrong.
            ``OptionError`` is also raised if there are no prompts or one is empty.
        PositionError: The model does not have a token of a prompt or of ``eos``, or a prompt has no room for its
            continuation. This is raised before the model runs, except for ``eos`` if the model does not declare its
            vocabulary.
        ImportError: The package of the tokenizer is not installed.
    """
    of_model, of_generation = _split("generate", options)
    generation = _native.Generation(max_new_tokens, **of_generation)
    asked = _Asked.of_prompts(_Model(path, of_model), prompts, stop, stream, continues=prefix is not None)
    return asked.run(generation, prefix=prefix, save_prefix=save_prefix)


@overload
def chat(
    path: str | PathLike[str],
    messages: Sequence[Mapping[str, Any]],
    max_new_tokens: int | None = None,
    *,
    stream: Literal[True],
    stop: str | Sequence[str] = (),
    **options: Unpack[ModelAndGenerateOptions],
) -> Stream[str]: ...
@overload
def chat(
    path: str | PathLike[str],
    messages: Sequence[Mapping[str, Any]],
    max_new_tokens: int | None = None,
    *,
    stream: Literal[False] = False,
    stop: str | Sequence[str] = (),
    **options: Unpack[ModelAndGenerateOptions],
) -> str: ...
def chat(
    path: str | PathLike[str],
    messages: Sequence[Mapping[str, Any]],
    max_new_tokens: int | None = None,
    *,
    stream: bool = False,
    stop: str | Sequence[str] = (),
    **options: Unpack[ModelAndGenerateOptions],
) -> str | Stream[str]:
    """Returns the model's answer to a chat. For a chat of several turns, use ``Generator``.

    The chat template of the model makes one text of the messages, as transformers' ``apply_chat_template`` does with
    ``add_generation_prompt=True``. It is a program of the model's author. It has no access to files, and its time is
    limited. Its memory is not.

    Args:
        path: The folder of the model, or the model in it.
        messages: The messages of the chat, dicts with the texts ``role`` and ``content``.
        max_new_tokens, stream, stop, **options: See ``generate``.

    Returns:
        The answer, or its pieces with ``stream=True``.

    Raises:
        SessionError: For the same reasons as in ``generate``. It is also raised if there is no chat template, or if it
            fails or refuses the messages.
        OptionError, PositionError: For the same reasons as in ``generate``.
        ImportError: A package for text is not installed.
    """
    of_model, of_generation = _split("chat", options)
    generation = _native.Generation(max_new_tokens, **of_generation)
    asked = _Asked.of_messages(_Model(path, of_model), messages, stop, stream)
    return asked.answer(asked.run(generation))


class Generator:
    """A loaded model that generates, and keeps what it has computed.

    The caches keep the tokens of the last call. If a prompt begins with these tokens, only the others are computed. So
    every turn of a chat passes the whole chat, and computes only what is new.

    Use it as a context manager, or call ``close``, to free its memory early. A call during another one, or before a
    stream was read to its end or closed, is an error.

    Args:
        path: The model, an ONNX file or the folder of an export.
        batch: The maximum number of prompts in a call.
        **options: The options of ``generate`` from ``convert`` to ``plugin``.

    Raises:
        SessionError, OptionError: For the same reasons as ``KvSession``, or because a folder contains no model or the
            model cannot be converted.
    """

    def __init__(self, path: str | PathLike[str], *, batch: int = 1, **options: Unpack[ModelOptions]) -> None:
        _check_names("Generator", options, ModelOptions)
        self._model = _Model(path, options)
        self._opened = self._model.native.open(_report, batch=batch)
        self._streams: weakref.WeakSet[Stream[Any]] = weakref.WeakSet()

    @property
    def capacity(self) -> int | None:
        """The maximum number of tokens of a prompt and its continuation, or None if the caches grow."""
        return self._opened.capacity

    @property
    def engine(self) -> str:
        """The name and version of ONNX Runtime and its plugin."""
        return self._opened.engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, with the functions ``encode`` and ``decode``."""
        return self._model.tokenizer

    @overload
    def generate(
        self,
        prompts: str,
        max_new_tokens: int | None = None,
        *,
        stream: Literal[True],
        stop: str | Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> Stream[str]: ...
    @overload
    def generate(
        self,
        prompts: list[str] | tuple[str, ...],
        max_new_tokens: int | None = None,
        *,
        stream: Literal[True],
        stop: str | Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> Stream[tuple[int, str]]: ...
    @overload
    def generate(
        self,
        prompts: Iterable[str | Indices],
        max_new_tokens: int | None = None,
        *,
        stream: Literal[False] = False,
        stop: str | Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> Generated: ...
    def generate(
        self,
        prompts: Any,
        max_new_tokens: int | None = None,
        *,
        stream: bool = False,
        stop: str | Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Continues prompts like the function ``generate``. The options are those from ``do_sample`` on."""
        _check_names("generate", options, GenerateOptions)
        generation = _native.Generation(max_new_tokens, **options)
        return self._run(_Asked.of_prompts(self._model, prompts, stop, stream), generation)

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = None,
        *,
        stream: Literal[True],
        stop: str | Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> Stream[str]: ...
    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = None,
        *,
        stream: Literal[False] = False,
        stop: str | Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> str: ...
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = None,
        *,
        stream: bool = False,
        stop: str | Sequence[str] = (),
        **options: Unpack[GenerateOptions],
    ) -> str | Stream[str]:
        """Returns the model's answer to a chat like the function ``chat``. Pass all messages in every turn."""
        _check_names("chat", options, GenerateOptions)
        generation = _native.Generation(max_new_tokens, **options)
        asked = _Asked.of_messages(self._model, messages, stop, stream)
        return asked.answer(self._run(asked, generation))

    def close(self) -> None:
        """Closes streams, and frees the model and the caches."""
        for stream in list(self._streams):
            stream.close()
        self._opened.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _run(self, asked: _Asked, generation: _native.Generation) -> Any:
        result = asked.run(generation, self._opened)
        if isinstance(result, Stream):
            self._streams.add(result)
        return result


class _Model:
    """An exported model and the files beside it. It is converted and loaded when it is opened."""

    def __init__(self, path: str | PathLike[str], options: Mapping[str, Any]) -> None:
        max_seq, capacity = options.get("max_seq"), options.get("capacity")
        for name in ["max_seq", "cache_type"]:
            if options.get(name) is not None and not options.get("convert", True):
                raise OptionError(f"{name} has no effect with convert=False", f"{name}_useless", name)
        if max_seq is not None and capacity is not None:
            message = "capacity cannot be given with max_seq, which sets it"
            raise OptionError(message, "capacity_useless", "capacity")
        self.native = _native.Model(path, **options)
        if capacity is not None and self.native.is_converted:
            message = (
                f"capacity = {capacity}: the model is converted, and max_seq sets the slots of a conversion"
            )
            raise OptionError(message, "capacity_useless", "capacity")
        self.files = TextFiles(Path(self.native.folder))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.files.tokenizer()

    @cached_property
    def template(self) -> Callable[[Sequence[Mapping[str, Any]]], str]:
        return self.files.chat_template()


def _report(done: str, description: str) -> None:
    """Logs how a model was prepared."""
    level = logging.WARNING if done == "converted" else logging.INFO
    logging.getLogger("kvscatter").log(level, "%s", description)


class _Asked:
    """The prompts of a call as token ids, and how their continuations are returned."""

    def __init__(
        self,
        model: _Model,
        ids: Any,
        *,
        is_text: bool,
        is_one: bool,
        stop: Sequence[str],
        stream: bool,
    ) -> None:
        self._model, self._prompts = model, _native.Prompts(ids)
        self._is_text, self._is_one, self._stop, self._stream = is_text, is_one, stop, stream

    @classmethod
    def of_prompts(
        cls, model: _Model, prompts: Any, stop: object, stream: bool, *, continues: bool = False
    ) -> _Asked:
        """Reads prompts. If they continue a saved prompt, the tokens that begin a text are in that."""
        stops = _stops(stop)
        is_one = isinstance(prompts, str)
        texts = [prompts] if is_one else prompts
        if not isinstance(texts, (bytes, list)) and isinstance(texts, Iterable):
            texts = list(texts)
        if not (isinstance(texts, list) and texts and isinstance(texts[0], str)):
            for name, given in (("stream", stream), ("stop", bool(stops))):
                if given:
                    raise OptionError(f"{name} needs prompts that are texts", "not_text", name)
            return cls(model, texts, is_text=False, is_one=False, stop=(), stream=False)
        for index, text in enumerate(texts):
            _check_text(f"prompts[{index}]", "prompts", text)
        encode = model.tokenizer.encode_template if continues else model.tokenizer.encode
        return cls(model, map(encode, texts), is_text=True, is_one=is_one, stop=stops, stream=stream)

    @classmethod
    def of_messages(cls, model: _Model, messages: Any, stop: object, stream: bool) -> _Asked:
        stops = _stops(stop)
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
            raise _wrong_type("messages", "messages", messages, "a list of dicts with role and content")
        listed = list(messages)
        if not listed:
            raise OptionError("messages is empty", "no_prompts", "messages")
        for index, message in enumerate(listed):
            name = f"messages[{index}]"
            if not isinstance(message, Mapping):
                raise _wrong_type(name, "messages", message, "a dict with role and content")
            for key in ("role", "content"):
                if key not in message:
                    raise OptionError(f"{name} has no {key}", "message", "messages")
                _check_text(f"{name}[{key!r}]", "messages", message[key])
        ids = model.tokenizer.encode_template(model.template(listed))
        return cls(model, [ids], is_text=True, is_one=True, stop=stops, stream=stream)

    def run(
        self,
        generation: _native.Generation,
        opened: _native.KeptGenerator | None = None,
        *,
        prefix: str | PathLike[str] | None = None,
        save_prefix: str | PathLike[str] | None = None,
    ) -> Any:
        """Generates, or returns the stream that does. Opens the model for this call if it is not open."""
        model, prompts = self._model, self._prompts
        if self._is_text:
            vocabulary = (opened or model.native).vocabulary
            model.tokenizer.check_vocabulary(vocabulary)
            if not generation.has_eos:
                generation = generation.with_eos(model.files.end_tokens(model.tokenizer, vocabulary))
        closes = opened is None
        if opened is None:
            model.native.check(prompts, generation, prefix=prefix, save_prefix=save_prefix)
            opened = model.native.open(_report, prompts=prompts, generation=generation, prefix=prefix)

        def run(watch: Watch | None) -> Generated:
            try:
                return opened.generate(prompts, generation, watch=watch, save_prefix=save_prefix)
            finally:
                if closes:
                    opened.close()

        if not self._is_text:
            return run(None)
        texts = Texts(model.tokenizer, len(prompts), self._stop)
        if self._stream:
            return Stream(run, texts, _text_of) if self._is_one else Stream(run, texts, _pair)
        generated = run(lambda new: texts.push(new)[1])
        texts.finish()
        return generated.with_texts(texts.texts())

    @staticmethod
    def answer(generated: Generated | Stream[str]) -> str | Stream[str]:
        return generated if isinstance(generated, Stream) else generated.text


def _text_of(piece: tuple[int, str]) -> str:
    return piece[1]


def _pair(piece: tuple[int, str]) -> tuple[int, str]:
    return piece


def _check_names(function: str, options: Mapping[str, Any], known: Any) -> None:
    """Refuses arguments that a function does not have, as Python does."""
    unknown = options.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}")


def _split(function: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of the model and those of the generation."""
    _check_names(function, options, ModelAndGenerateOptions)
    of_model = ModelOptions.__annotations__.keys()
    return (
        {name: value for name, value in options.items() if name in of_model},
        {name: value for name, value in options.items() if name not in of_model},
    )


def _stops(stop: object) -> list[str]:
    """Returns the texts before which a text ends."""
    if isinstance(stop, str):
        stop = [stop]
    if not isinstance(stop, Iterable) or isinstance(stop, bytes):
        raise _wrong_type("stop", "stop", stop, "a text or a list of texts")
    stops = list(stop)
    for index, text in enumerate(stops):
        _check_text(f"stop[{index}]", "stop", text)
        if not text:
            raise OptionError(f"stop[{index}] is empty", "stop", "stop")
    return stops


def _check_text(name: str, argument: str, text: object) -> None:
    if not isinstance(text, str):
        raise _wrong_type(name, argument, text, "a text")


def _wrong_type(name: str, argument: str, value: object, expected: str) -> ElementTypeError:
    message = f"{name} is of type {type(value).__name__}: must be {expected}"
    return ElementTypeError(message, "keyword_type", argument)
