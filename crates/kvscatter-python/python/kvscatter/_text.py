"""Text for models of tokens: the tokenizer, the end tokens and the chat template in the files of a model.

The files may come from strangers, and their sizes are limited. A chat template is a program. The sandbox of jinja2
gives it no access to files and limits `range`. Its time, its integers and the length of its text are limited, too. Its
memory is not.
"""

from __future__ import annotations

import datetime
import importlib
import json
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NoReturn

from kvscatter.errors import SessionError

MAX_TOKENIZER = 1 << 28
"""The size limit of a tokenizer in bytes. The largest ones have about 35 MB."""
MAX_CONFIG = 1 << 24
"""The size limit of the other files."""
MAX_TEMPLATE = 1 << 18
"""The maximum number of characters of a chat template, which limits the time of its translation. The longest ones have
about 30,000."""
MAX_TEXT = 64 << 20
"""The maximum number of characters that a chat template may write."""
MAX_SECONDS = 10.0
"""The maximum time in which a chat template may write a text."""
MAX_BITS = 1 << 12
"""The maximum number of bits of a product or power of integers in a chat template."""
WINDOW = 8
"""The number of tokens that `Pieces` decodes together. A decoder may need the token before a token, but not a whole
text."""

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that a chat template can name."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""The character that a decoder returns for bytes that are not (yet) a character."""


def fail(kind: str, message: str) -> NoReturn:
    """Raises the error about a file of a model. Its message has one line, and cannot control a terminal."""
    line = " ".join(message.split())
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    raise SessionError("".join(escaped), kind)


class TextFiles:
    """The files of a model that turn text into tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._config_path = folder / "tokenizer_config.json"

    @property
    def config(self) -> Mapping[str, Any]:
        """Returns the content of ``tokenizer_config.json``, which may be missing."""
        return self._json("tokenizer_config.json") or {}

    def tokenizer(self) -> Tokenizer:
        """Reads the tokenizer."""
        path = self.folder / "tokenizer.json"
        text = _read(path, MAX_TOKENIZER)
        if text is None:
            fail(
                "no_tokenizer",
                f"{self.folder}: contains no tokenizer.json, which turns text into tokens; copy it from the model's "
                "source, or give token ids",
            )
        config = self.config
        return Tokenizer(path, text, self._ends_of_text(config), _special_tokens(config))

    def end_tokens(self, tokenizer: Tokenizer, vocabulary: int | None) -> list[int]:
        """Returns the tokens that end a text: those of ``generation_config.json``, else those of ``genai_config.json``,
        else the end token of the tokenizer. A model may have none. ``vocabulary`` is the number of its tokens."""
        for file, keys in (
            ("generation_config.json", ("eos_token_id",)),
            ("genai_config.json", ("model", "eos_token_id")),
        ):
            value: Any = self._json(file)
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                continue
            ids = value if isinstance(value, list) else [value]
            place = f"{self.folder / file}: {'.'.join(keys)}"
            if not all(type(token) is int and token >= 0 for token in ids):
                fail("end_token", f"{place} must be a token id or a list of token ids")
            return _known(ids, vocabulary, place)
        text = _token(self.config.get("eos_token"))
        if text is None:
            return []
        token = tokenizer.id(text)
        if token is None:
            fail("end_token", f"{self._config_path}: the end token {text!r} is not in the tokenizer")
        return _known([token], vocabulary, f"{self._config_path}: eos_token")

    def chat_template(self) -> Callable[[Sequence[Mapping[str, Any]]], str]:
        """Reads the chat template. The result returns the text of a chat and of the beginning of the next answer, as
        transformers' ``apply_chat_template`` writes it with ``add_generation_prompt=True``."""
        path = self.folder / "chat_template.jinja"
        config = self.config
        source = _read(path, MAX_CONFIG)
        if source is None:
            path, source = self._config_path, self._own_template(config.get("chat_template"))
        tokens = {name: token for name in SPECIAL if (token := _token(config.get(name))) is not None}
        return _template(str(path), source, tokens)

    def _own_template(self, template: object) -> str:
        if isinstance(template, list):
            named = [each for each in template if isinstance(each, dict) and each.get("name") == "default"]
            template = named[0].get("template") if named else None
            if not isinstance(template, str):
                fail("no_template", f'{self._config_path}: chat_template has no template "default"')
        if not isinstance(template, str):
            fail(
                "no_template",
                f"{self.folder}: contains no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); use generate instead of chat",
            )
        return template

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        text = _read(path, MAX_CONFIG)
        if text is None:
            return None
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            fail("json", f"{path}: not JSON: {error}")
        if not isinstance(content, dict):
            fail("json", f"{path}: must be an object")
        return content

    @staticmethod
    def _ends_of_text(config: Mapping[str, Any]) -> tuple[str | None, str | None] | None:
        """Returns the tokens that the configuration puts before and after every text, or None if it leaves this to the
        tokenizer."""
        adds = [config.get(f"add_{name}_token") for name in ("bos", "eos")]
        if not any(isinstance(add, bool) for add in adds):
            return None
        bos, eos = (
            _token(config.get(f"{name}_token")) if add is True else None
            for name, add in zip(("bos", "eos"), adds, strict=True)
        )
        return bos, eos


class Tokenizer:
    """The tokenizer of a model, as ``kvscatter.Generator.tokenizer`` has it."""

    def __init__(
        self,
        path: Path,
        text: str,
        ends_of_text: tuple[str | None, str | None] | None,
        special: Iterable[str] = (),
    ) -> None:
        self.path = path
        tokenizers = _package("tokenizers")
        with _errors_of_package("tokenizer", f"{path}: not a tokenizer"):
            self._inner = tokenizers.Tokenizer.from_str(text)
            self._inner.no_padding()
            self._inner.no_truncation()
        added = self._inner.get_added_tokens_decoder()
        self._special = {token for token, added_token in added.items() if added_token.special}
        # Tokens that are special already may have other properties, which stay.
        more = {text: id for text in special if (id := self.id(text)) is not None and id not in self._special}
        self._inner.add_special_tokens(list(more))
        self._special.update(more.values())
        self._ends = ends_of_text and tuple(
            [] if token is None or (known := self.id(token)) is None else [known] for token in ends_of_text
        )

    def __repr__(self) -> str:
        return f"<tokenizer {self.path}>"

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, with the special tokens that begin or end a text."""
        if self._ends is None:
            return self._encode(text, special=True)
        before, after = self._ends
        return [*before, *self._encode(text, special=False), *after]

    def encode_template(self, text: str) -> list[int]:
        """Returns the tokens of a text that contains its special tokens, such as that of a chat template, or that
        continues another one."""
        return self._encode(text, special=False)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, without the special ones."""
        known = [token for token in tokens if not self.is_silent(token)]
        with _errors_of_package("decode", f"{self.path}: cannot decode the tokens {known[-WINDOW:]}"):
            text: str = self._inner.decode(known, skip_special_tokens=True)
        return text

    def id(self, token: str) -> int | None:
        """Returns the id of a token, or None if the tokenizer does not have it."""
        known: int | None = self._inner.token_to_id(token)
        return known

    def check_vocabulary(self, vocabulary: int | None) -> None:
        """Checks that a model has the tokens of this tokenizer, if their number is known. Added tokens may be missing,
        because some models lack those of other media."""
        last, text = self._last
        if vocabulary is not None and last >= vocabulary:
            fail(
                "other_vocabulary",
                f"{self.path}: has the token {text!r} with id {last}, but the model has {vocabulary} tokens; "
                "it belongs to another model",
            )

    @cached_property
    def _last(self) -> tuple[int, str]:
        """The last token that was not added."""
        added = self._inner.get_added_tokens_decoder()
        tokens = self._inner.get_vocab(with_added_tokens=False).items()
        return max(((token, text) for text, token in tokens if token not in added), default=(-1, ""))

    def is_silent(self, token: int) -> bool:
        """Returns whether a token has no text, because it is special or because the tokenizer does not have it."""
        # The package takes ids of 32 bits.
        return not 0 <= token < 1 << 32 or token in self._special or self._inner.id_to_token(token) is None

    def is_byte(self, token: int) -> bool:
        """Returns whether a token stands for one byte of a character. Such tokens are decoded together with those
        after them."""
        text = self._inner.id_to_token(token)
        digits = text[3:5] if text is not None and len(text) == 6 else ""
        if text != f"<0x{digits}>":
            return False
        try:
            return int(digits, 16) >= 0
        except ValueError:
            return False

    def _encode(self, text: str, *, special: bool) -> list[int]:
        with _errors_of_package("encode", f"{self.path}: cannot encode this text"):
            ids: list[int] = self._inner.encode(text, add_special_tokens=special).ids
        return ids


@contextmanager
def _errors_of_package(kind: str, failure: str) -> Iterator[None]:
    """Reports the errors of the package `tokenizers`. Some files make it panic."""
    try:
        yield
    # The package raises nothing more specific.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        fail(kind, f"{failure}: {error}")


class Pieces:
    """Decodes a text token by token.

    The pieces together are the text that all tokens give together, and no piece ends in the middle of a character. Only
    the last tokens are decoded again for every token, because a text may be long.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        # The length of the part of the window's text that has been returned.
        self._sent = 0
        # The start of the tokens after which a whole piece was returned last.
        self._last_start = 0

    def push(self, token: int) -> str:
        """Takes the next token. Returns the text that is certain now, which may be empty."""
        if self._tokenizer.is_silent(token):
            return ""
        self._window.append(token)
        if self._tokenizer.is_byte(token):
            return ""
        text = self._tokenizer.decode(self._window)
        # At most the last character is incomplete.
        complete = len(text.removesuffix(REPLACEMENT))
        piece = text[self._sent : complete]
        self._sent = max(self._sent, complete)
        if complete == len(text):
            self._shorten()
        return piece

    def finish(self) -> str:
        """Returns the rest of the text, with replacement characters for incomplete ones."""
        piece = self._tokenizer.decode(self._window)[self._sent :]
        self._sent += len(piece)
        return piece

    def _shorten(self) -> None:
        """Forgets tokens that no later token depends on.

        Some decoders remove the blank before the first token, so at least one token with a text stays.
        """
        if len(self._window) >= WINDOW:
            rest = self._window[self._last_start :]
            text = self._tokenizer.decode(rest)
            if text:
                self._window, self._sent = rest, len(text)
        self._last_start = len(self._window)


class Stops:
    """Ends a text before the first of some other texts.

    None of them is returned, also if it is split over several pieces. If some overlap, the one that ends first counts,
    so that the result does not depend on the pieces.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        # The end of the text so far, which may be the beginning of one of the texts.
        self._held = ""
        self.has_stopped = False

    def push(self, piece: str) -> str:
        """Takes the next piece of the text.

        Returns all of it before the first of the texts, without an end that may be the beginning of one of them.
        """
        if self.has_stopped:
            return ""
        text, self._held = self._held + piece, ""
        found = [(at + len(stop), at) for stop in self._texts if (at := text.find(stop)) >= 0]
        if found:
            self.has_stopped = True
            _end, at = min(found)
            return text[:at]
        longest = max(map(len, self._texts), default=0)
        for at in range(max(0, len(text) - longest + 1), len(text)):
            if any(stop.startswith(text[at:]) for stop in self._texts):
                text, self._held = text[:at], text[at:]
                break
        return text

    def finish(self) -> str:
        """Returns the end of the text, which turned out to be the beginning of none of the texts."""
        held, self._held = self._held, ""
        return held


def _read(path: Path, limit: int) -> str | None:
    """Returns the text of a regular file of a limited size, or None if it does not exist."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            fail("file", f"{path}: not a regular file")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        fail("file", f"{path}: {error.strerror or error}")
    if len(content) > limit:
        fail("file", f"{path}: has more than {limit} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        fail("file", f"{path}: not UTF-8")


def _known(ids: list[int], vocabulary: int | None, place: str) -> list[int]:
    """Checks end tokens, which a file names at a place."""
    for token in ids:
        if vocabulary is not None and token >= vocabulary:
            message = (
                f"{place} is {token}, but the model has {vocabulary} tokens; eos= chooses other end tokens"
            )
            fail("end_token", message)
    return ids


def _special_tokens(config: Mapping[str, Any]) -> list[str]:
    """Returns the tokens that a configuration makes special, as in transformers."""
    tokens = [config.get(name) for name in SPECIAL]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(name)
        tokens += more.values() if isinstance(more, dict) else more if isinstance(more, list) else []
    added = config.get("added_tokens_decoder")
    if isinstance(added, dict):
        tokens += [
            token for token in added.values() if isinstance(token, dict) and token.get("special") is True
        ]
    return [text for token in tokens if (text := _token(token)) is not None]


def _token(token: object) -> str | None:
    """Returns the text of a special token, which is a string or an object with its content."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        package = name.partition(".")[0]
        raise ImportError(f"text needs the package {package}: pip install kvscatter[text]") from missing


class _Refused(Exception):
    """The error that a template raises with ``raise_exception``."""


class _TooLong(BaseException):
    """Ends a template that takes too long. jinja2 catches some exceptions of other classes."""


def _template(
    place: str, source: str, tokens: Mapping[str, str]
) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    """Checks a template's syntax, and returns the function that applies it."""
    jinja2 = _package("jinja2")
    if len(source) > MAX_TEMPLATE:
        fail("template", f"{place}: the chat template has more than {MAX_TEMPLATE} characters")
    try:
        template = _environment().from_string(source)
    except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError) as error:
        _fails(place, error)

    def apply(messages: Sequence[Mapping[str, Any]]) -> str:
        return _in_time(place, lambda: write(messages))

    def write(messages: Sequence[Mapping[str, Any]]) -> str:
        context = {
            **tokens,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        text: list[str] = []
        length = 0
        try:
            for part in template.generate(context):
                length += len(part)
                if length > MAX_TEXT:
                    fail("template", f"{place}: the chat template writes more than {MAX_TEXT} characters")
                text.append(part)
        except _Refused as error:
            fail("template", f"{place}: the chat template refuses this chat: {error}")
        except SessionError:
            raise
        # A template can cause any error of Python, such as a division by 0.
        except Exception as error:
            _fails(place, error)
        return "".join(text)

    return apply


def _in_time(place: str, call: Callable[[], str]) -> str:
    """Calls a function, and ends it when a statement of Python begins after `MAX_SECONDS`."""
    end = time.monotonic() + MAX_SECONDS

    def check(_frame: object, _event: str, _argument: object) -> Any:
        if time.monotonic() > end:
            raise _TooLong
        return check

    before = sys.gettrace()
    try:
        sys.settrace(check)
        return call()
    except _TooLong:
        fail("template", f"{place}: the chat template takes more than {MAX_SECONDS:g} seconds")
    finally:
        sys.settrace(before)


def _fails(place: str, error: BaseException) -> NoReturn:
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while line is None and trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    where = place if line is None else f"{place}, line {line}"
    problem = str(error) or type(error).__name__
    fail("template", f"{where}: the chat template fails: {problem}")


@cache
def _environment() -> Any:
    """Returns an environment in which templates give the same texts as in that of transformers."""
    extensions, sandbox = _package("jinja2.ext"), _package("jinja2.sandbox")

    extension: Any = extensions.Extension
    sandboxed: Any = sandbox.ImmutableSandboxedEnvironment

    class Tracking(extension):  # type: ignore[misc]
        """Accepts the tag that marks answers in transformers, and does not change the text."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(sandboxed):  # type: ignore[misc]
        """Refuses integers whose computation would take long."""

        intercepted_binops = frozenset(["*", "**"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length(), right.bit_length()
                if (bits[0] * right if operator == "**" else sum(bits)) > MAX_BITS:
                    raise OverflowError(f"an integer of more than {MAX_BITS} bits")
            return super().call_binop(context, operator, left, right)

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Tracking, extensions.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Formats JSON. Unlike the filter of jinja2, it does not escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
