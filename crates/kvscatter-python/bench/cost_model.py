"""What a decode step of a sharded decoder costs each device: a model of a few constants."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoder, and what it decodes at once."""

    layers: int
    hidden: int
    heads: int  # of keys and values
    head_size: int
    element_bytes: int
    samples: int
    tokens: int  # of each sample

    @property
    def row_bytes(self) -> int:
        """The bytes that one head has for one token, of keys or of values."""
        return self.head_size * self.element_bytes


@dataclasses.dataclass(frozen=True)
class Split:
    """How devices share a decoder: `batch` groups have different samples, and the `heads` devices of a group have
    different heads. With more devices than heads, several devices have the same head."""

    batch: int
    heads: int

    @property
    def devices(self) -> int:
        return self.batch * self.heads


@dataclasses.dataclass(frozen=True)
class Constants:
    """Times of one device, in seconds."""

    call: float  # a write, however small
    row: float  # one more row of one head
    read: float  # a byte that attention reads
    calls_per_layer: int  # 1 if a call writes keys and values
    message: float | None = None  # a message to another device, however small
    byte: float | None = None  # a byte of a message


def rows(decoder: Decoder, split: Split) -> float:
    """Returns how many rows a device writes into the keys of a layer, and as many into the values."""
    return decoder.samples / split.batch * max(decoder.heads / split.heads, 1)


def write(of: Constants, decoder: Decoder, split: Split) -> float:
    """Returns the seconds of all writes of a step. Devices do not wait for each other in them."""
    return decoder.layers * (of.calls_per_layer * of.call + 2 * rows(decoder, split) * of.row)


def cache_bytes(decoder: Decoder, split: Split) -> float:
    """Returns the bytes of the caches of one device."""
    return 2 * decoder.layers * rows(decoder, split) * decoder.tokens * decoder.row_bytes


def read(of: Constants, decoder: Decoder, split: Split) -> float:
    """Returns the seconds in which attention reads every key and value once."""
    return cache_bytes(decoder, split) * of.read


def all_reduce(of: Constants, size: float, devices: int) -> float:
    """Returns the seconds of a ring that adds up `size` bytes of each device."""
    assert of.message is not None and of.byte is not None, "these devices were not measured together"
    steps = 2 * (devices - 1)
    return steps * (of.message + size / devices * of.byte)


def all_reduces(of: Constants, decoder: Decoder, split: Split) -> float:
    """Returns the seconds of the two sums of each layer, after attention and after the units."""
    size = decoder.samples / split.batch * decoder.hidden * decoder.element_bytes
    return 2 * decoder.layers * all_reduce(of, size, split.heads)
