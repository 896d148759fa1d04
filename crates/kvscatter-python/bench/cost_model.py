"""Predicts what the caches cost each device in a decode step: writes, reads of attention and all-reduces."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoder, and what it decodes at once."""

    layers: int
    hidden_size: int
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
class Mesh:
    """How devices share a decoder. `batch` groups of devices have different samples, and the `heads` devices of a
    group have different heads. If there are more devices than heads, several have the same head."""

    batch: int
    heads: int

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.batch * self.heads


@dataclasses.dataclass(frozen=True)
class Device:
    """Times of one device, in seconds."""

    call: float  # a write, however small
    row: float  # one more row of one head
    read: float  # a byte that attention reads
    calls_per_layer: int  # 1 if a call writes both keys and values


@dataclasses.dataclass(frozen=True)
class Link:
    """Times of messages between two devices, in seconds."""

    message: float  # however small
    byte: float


def rows(decoder: Decoder, mesh: Mesh) -> float:
    """Returns the rows that a device writes into the keys of a layer. It writes as many into the values."""
    return decoder.samples / mesh.batch * max(decoder.heads / mesh.heads, 1)


def write_seconds(device: Device, decoder: Decoder, mesh: Mesh) -> float:
    """Returns the time of all writes of a step."""
    return decoder.layers * (device.calls_per_layer * device.call + 2 * rows(decoder, mesh) * device.row)


def cache_bytes(decoder: Decoder, mesh: Mesh) -> float:
    """Returns the bytes of the caches of one device."""
    return 2 * decoder.layers * rows(decoder, mesh) * decoder.tokens * decoder.row_bytes


def read_seconds(device: Device, decoder: Decoder, mesh: Mesh) -> float:
    """Returns the time in which attention reads every key and value once."""
    return cache_bytes(decoder, mesh) * device.read


def all_reduce_seconds(link: Link, size: float, devices: int) -> float:
    """Returns the time of one all-reduce of `size` bytes from each device, in a ring of devices."""
    return 2 * (devices - 1) * (link.message + size / devices * link.byte)


def all_reduces_seconds(link: Link, decoder: Decoder, mesh: Mesh) -> float:
    """Returns the time of the two all-reduces of each layer, after attention and after the MLP."""
    size = decoder.samples / mesh.batch * decoder.hidden_size * decoder.element_bytes
    return 2 * decoder.layers * all_reduce_seconds(link, size, mesh.heads)
