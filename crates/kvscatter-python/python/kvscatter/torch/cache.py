"""A cache for Hugging Face transformers that writes in place with ``kvscatter::tensor_scatter_``.

`KvCache` replaces `transformers.StaticCache`. Layers of full attention have the same shapes and work under
`torch.compile` and `torch.export` where those of `StaticCache` do. Layers with a sliding window keep the
last tokens in a ring. Keys and values stay in place while the number of samples stays the same. They can be stored in
fewer bytes than the model computes with. This module needs transformers 4.57 or newer and imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor

import kvscatter
from kvscatter import _integers, errors
from kvscatter._native import write_rows
from kvscatter.torch import _cache_types, tensor_scatter_

try:
    from transformers.cache_utils import Cache, DynamicLayer, StaticCache, StaticLayer
except ImportError as missing:
    raise ImportError(
        "kvscatter.torch.KvCache needs transformers 4.57: pip install kvscatter[transformers]"
    ) from missing

from kvscatter.torch import _interface

_interface.register()

__all__ = ["KvCache", "KvLayer", "KvRingLayer"]


def __dir__() -> list[str]:
    return __all__


CacheType = Literal["float32", "float16", "bfloat16", "int8"]
"""The types in which keys and values can be stored."""

_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}
"""The supported types of layers. A chunk needs no more slots than a window of the same size."""


_BEFORE_5_15 = "max_length" in inspect.signature(Cache.crop).parameters
"""Whether transformers is older than 5.15, so that a positive argument of `crop` is the number of tokens to keep."""


def _least_to_keep() -> int:
    """Returns the least argument of `crop` that is the number of tokens to keep, as for `DynamicCache`. It is 0 before
    transformers 5.14, and 1 in 5.14. Since 5.15 there is none, and this returns 2**63."""
    if not _BEFORE_5_15:
        return 2**63
    layer, rows = DynamicLayer(), torch.zeros(1, 1, 1, 1)
    layer.update(rows, rows)
    layer.crop(0)
    return 0 if layer.get_seq_length() == 0 else 1


_LEAST_TO_KEEP = _least_to_keep()
_LARGEST_CROP = 2**63 - 1 if _BEFORE_5_15 else 0

_SHORTEN_MASKS = {"eager", "sdpa", _interface.NAME}
"""The implementations of attention that shorten a mask to the number of keys."""

_KEPT_WRITES = 16
"""The number of layouts whose writes a layer keeps. A prompt and a token may have four each, two of them of scales."""


class _Layer(StaticLayer):  # type: ignore[misc]
    """The base of all layers. It selects, repeats and reorders samples, and allocates again if their number changes
    after `reset`.

    It allocates, counts and resets itself. Older versions of `StaticLayer` count the rows that are not zero, and
    their `reset` replaces the tensor `cumulative_length` by an integer.
    """

    batch_size = 0
    max_cache_len: int
    """The number of slots."""
    _mode: Literal["linear", "circular"]

    def __init__(self, max_cache_len: int, cache_type: str | None, rotation: Any) -> None:
        super().__init__(max_cache_len)
        self._element_type = _cache_types.element_type(cache_type)
        """The type of stored elements, or None for the model's."""
        if not isinstance(rotation, bool):
            message = f"rotation is of type {type(rotation).__name__}: must be True or False"
            raise errors.ElementTypeError(message, "element_type", "rotation")
        self._rotation = rotation
        self.key_scales: torch.Tensor | None = None
        """The scales of int8 keys, ``[batch, heads, slots, 1]`` in float32. None for other types."""
        self.value_scales: torch.Tensor | None = None
        """The scales of int8 values."""
        self.cumulative_length = torch.tensor(0)
        """The number of tokens. Compiled graphs keep its address."""
        self._is_reset = False
        """Whether the next update may have another number of samples."""
        self._prepared: dict[tuple[object, ...], kvscatter.Prepared] = {}
        """The prepared writes, by the layouts of a cache and of its new rows."""
        self.config: Any = None
        """The config of the model, which names its attention. `KvCache` sets it."""
        self._last: list[kvscatter.Prepared] = []
        """The prepared writes of the keys and the values of the last step, if they are stored as they are."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        """Allocates zeros with the batch size, heads and device of these tensors, and with their dtype unless the layer
        has its own. transformers 4 passes only the keys."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.batch_size, self.num_heads = key_states.shape[:2]
        slots = self.batch_size, self.num_heads, self.max_cache_len
        self.keys, self.values = (
            states.new_zeros(*slots, states.shape[3], dtype=self._element_type)
            for states in (key_states, key_states if value_states is None else value_states)
        )
        if self._element_type is torch.int8:
            self.key_scales, self.value_scales = (
                key_states.new_zeros(*slots, 1, dtype=torch.float32) for _ in range(2)
            )
        self.cumulative_length = self.cumulative_length.to(self.device)
        self._forget()
        if not torch.compiler.is_compiling():
            for tensor in (*self._held(), self.cumulative_length):
                torch._dynamo.mark_static_address(tensor)
        self.is_initialized = True

    @property
    def is_compileable(self) -> bool:
        """False for ``attn_implementation="kvscatter"``, whose masks are only numbers. transformers then makes no masks
        for a compiled model in advance."""
        return self._attention() != _interface.NAME

    def _attention(self) -> str:
        """Returns the name of the model's attention."""
        name: str = getattr(self.config, "_attn_implementation", None) or "sdpa"
        return name

    @property
    def max_batch_size(self) -> int:
        """`batch_size`, by its name before transformers 5.13."""
        return self.batch_size

    def get_max_length(self) -> int:
        """Returns the largest number of tokens."""
        return self.max_cache_len

    def get_max_cache_shape(self) -> int:
        """Returns `get_max_length`, by its name before transformers 5.13."""
        return self.get_max_length()

    def _allocate(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocates keys and values for the samples of the first update, also after `reset`."""
        of_keys, of_values = key_states.shape[:3], value_states.shape[:3]
        if of_keys != of_values:
            message = f"value_states is {[*of_values]} without its last dimension: must be {[*of_keys]}, as key_states"
            raise errors.ShapeError(message, "dimension_mismatch", "value_states")
        if self.is_initialized and self._is_reset:
            self.is_initialized = key_states.shape[0] == self.batch_size
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)

    def _held(self) -> list[torch.Tensor]:
        """Returns the stored tensors, `[batch, heads, slots, ..]` each."""
        tensors = self.keys, self.values, self.key_scales, self.value_scales
        return [tensor for tensor in tensors if tensor is not None]

    def _stored(self, key_states: torch.Tensor, value_states: torch.Tensor) -> list[torch.Tensor]:
        """Returns new rows as they are stored, in the order of `_held`. Raises an error if it cannot convert them."""
        if self._element_type is None:
            return [key_states, value_states]
        for argument, states in (("key_states", key_states), ("value_states", value_states)):
            if (
                states.dtype != self.dtype
                or states.layout is not torch.strided
                or not states.is_floating_point()
            ):
                message = (
                    f"{argument} is {states.dtype}, {states.layout}: must be dense and of the floating-point type of "
                    f"the first update, {self.dtype}"
                )
                raise errors.ElementTypeError(message, "element_type_mismatch", argument)
            if self._element_type is torch.int8 and _needs_gradient(states):
                message = (
                    f"{argument} requires a gradient, which int8 caches do not have: use torch.no_grad()"
                )
                raise errors.OptionError(message, "gradient", argument)
        if self._element_type is not torch.int8:
            return [key_states.to(self._element_type), value_states.to(self._element_type)]
        if self._rotation:
            key_states = _cache_types.rotate(key_states)
        (keys, key_scales), (values, value_scales) = map(_cache_types.quantize, (key_states, value_states))
        return [keys, values, key_scales, value_scales]

    def _read(self, held: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns keys and values as the model computes with them. The argument is in the order of `_held`."""
        keys, values, *scales = held
        if self._element_type is None:
            return keys, values
        if scales:
            keys, values = (
                _cache_types.dequantize(*pair) for pair in zip((keys, values), scales, strict=True)
            )
            if self._rotation:
                keys = _cache_types.rotate(keys)  # the inverse, so that queries stay as they are
        return keys.to(self.dtype), values.to(self.dtype)

    def _forget(self) -> None:
        """Sets the number of tokens to 0."""
        self.cumulative_length.zero_()

    def _written(self) -> None:
        """Notes that an update has succeeded."""
        if self._is_reset:  # not set in every step, because compiled graphs guard what they write
            self._is_reset = False

    def _write(self, stored: Sequence[torch.Tensor], slot: int | torch.Tensor) -> None:
        """Writes new rows of every sample, in the order of `_held`, from this slot on, or raises an error and writes
        nothing. If a derivative of the values cannot be recorded, the keys have been written."""
        held, samples = self._held(), stored[0].shape[0]
        pairs = list(zip(held, stored, strict=True))
        # All but the keys are first written with lengths of 0. This writes nothing, and raises all errors of the write
        # except those for positions. The write of the keys checks the positions, which are the same.
        if _interface.is_plain(*held, *stored):
            # Prepared writes take a microsecond, and the operator takes 30.
            writes = [(self._prepare(*pair), *pair) for pair in pairs]
            self._last = [write for write, *_ in writes] if self._element_type is None else []
            if write_rows(writes, int(slot)):
                return
            slots = [int(slot)] * samples
            for write, cache, rows in writes[1:]:
                write(cache, rows, slots, [0] * samples)
            for write, cache, rows in writes:
                write(cache, rows, slots)
            return
        if isinstance(slot, torch.Tensor):
            starts = slot.repeat(samples)  # a copy, which gradients need
        else:
            starts = torch.full((samples,), slot, dtype=torch.int64, device=held[0].device)
        if not _is_traced(stored[0]):  # operators that are recorded have been checked
            with torch.no_grad():
                for pair in pairs[1:]:
                    tensor_scatter_(*pair, starts, mode=self._mode, lengths=torch.zeros_like(starts))
        for pair in pairs:
            tensor_scatter_(*pair, starts, mode=self._mode)

    def _write_as_before(self, key_states: torch.Tensor, value_states: torch.Tensor, slot: int) -> bool:
        """Writes new rows if they are stored as they are and have the layouts of the last step, as in a loop. Returns
        False if it has written nothing. Only the memory of tensors is looked at, so none may be traced."""
        keys, values = self.keys, self.values
        if len(self._last) != 2 or self._is_reset or keys is None or values is None:
            return False
        if keys.is_inference() and not torch.is_inference_mode_enabled():
            return False
        of_keys, of_values = self._last
        return write_rows([(of_keys, keys, key_states), (of_values, values, value_states)], slot)

    def _prepare(self, cache: torch.Tensor, states: torch.Tensor) -> kvscatter.Prepared:
        """Returns the write of these rows. It is the same in every step of a loop."""
        layouts = cache.shape, cache.stride(), states.shape, states.stride(), states.dtype
        write = self._prepared.get(layouts)
        if write is None:
            write = kvscatter.prepare(cache, states, mode=self._mode)
            if len(self._prepared) == _KEPT_WRITES:
                self._prepared.clear()
            self._prepared[layouts] = write
        return write

    def _clear(self, first: int, end: int) -> None:
        """Writes zeros over slots whose tokens were dropped. Attention multiplies slots that a mask hides by 0, and 0
        times NaN or infinity is NaN."""
        for held in self._held():
            if first < end:
                with _in_place(held):
                    held[:, :, first:end].zero_()

    def reset(self) -> None:
        """Forgets all tokens and writes zeros over them. The next update may have another number of samples,
        and keys and values are then allocated again."""
        self._clear(0, self.max_cache_len)
        self._forget()
        self._is_reset = True

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Replaces sample ``i`` by sample ``beam_idx[i]``, in place if the number of samples stays the same."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps these samples, in this order. Indices may repeat. Keys and values are written in place, through a
        copy of one tensor at a time, if the number of samples stays the same."""
        if not self.is_initialized:
            return
        for name in ("keys", "values", "key_scales", "value_scales"):
            held: torch.Tensor | None = getattr(self, name)
            if held is None:
                continue
            with _in_place(held):
                selected = held[indices.to(held.device)]
                if selected.shape == held.shape:
                    held.copy_(selected)  # compiled graphs keep the address
                    continue
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(selected)
            setattr(self, name, selected)
            self.batch_size = selected.shape[0]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each sample: sample ``i`` becomes the samples from ``i * repeats`` on."""
        if self.is_initialized:
            self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))


class KvLayer(_Layer):
    """The keys and values of one layer, ``[batch, heads, max_cache_len, head_size]`` each, written in place.

    Shapes and masks are those of `StaticLayer`. In every supported version of transformers, this layer can be
    cropped, and its samples can be selected and repeated. `KvCache` describes ``cache_type`` and ``rotation``.
    """

    is_croppable = True
    _mode = "linear"

    def __init__(
        self, max_cache_len: int, *, cache_type: CacheType | None = None, rotation: bool = True
    ) -> None:
        super().__init__(max_cache_len, cache_type, rotation)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes new keys and values after the old ones. Returns the tokens so far as views of the caches, or copies
        if they are stored in another type than the model's. Compiled models, and attention that does not shorten its
        mask, get the whole caches.

        Both are ``[batch, heads, rows, head_size]`` and may have any strides. If they do not fit, this
        raises `errors.PositionError` before anything is written. `StaticLayer` fails with an index error or
        a device assertion instead.

        Before transformers 5.4, a model passes positions, and may go back to an earlier one. The tokens after the new
        ones are then dropped, as by `crop`. In a compiled model they stay in their slots, as in `StaticLayer`.
        """
        positions, rows = _positions(args, kwargs), key_states.shape[-2]
        if _is_traced(key_states):
            self._allocate(key_states, value_states)
            stored, first = self._stored(key_states, value_states), self.cumulative_length
            if positions is not None:
                # After a prompt in chunks, transformers 5.0 passes a position that is one too far.
                first = first.minimum(positions[0])
            self._write(stored, first)
            self.cumulative_length.copy_(first + rows)
            self._written()
            return self._read(self._held())
        tokens = int(self.cumulative_length)
        start = tokens if positions is None else min(tokens, int(positions[0]))
        end = _end(start, rows, self.max_cache_len)
        if not self._write_as_before(key_states, value_states, start):
            self._allocate(key_states, value_states)
            self._write(self._stored(key_states, value_states), start)
            self._written()
        if end < tokens:
            self._clear(end, tokens)
        self.cumulative_length.fill_(end)
        if self._attention() not in _SHORTEN_MASKS:
            end = self.max_cache_len
        return self._read([held.narrow(2, 0, end) for held in self._held()])

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        """Returns the number of slots and 0, the position of the first one. With ``attn_implementation="kvscatter"``,
        the number is that of the tokens after ``query_length`` new ones.

        Before transformers 5.4, the argument has the positions of the new tokens.
        """
        if self._attention() != _interface.NAME or _interface.are_operators_recorded():
            return self.max_cache_len, 0
        tokens = int(self.cumulative_length) if self.is_initialized else 0
        if isinstance(query_length, torch.Tensor):
            return min(tokens, int(query_length[0])) + query_length.shape[0], 0
        return tokens + query_length, 0

    def get_seq_length(self) -> torch.Tensor | int:
        """Returns the number of tokens, as a tensor once memory has been allocated."""
        return self.cumulative_length.clone() if self.is_initialized else 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last ``-tokens_to_remove`` tokens, or all if there are fewer. The next tokens
        overwrite them.

        The number is 0 or negative, as in `DynamicLayer.crop`. A positive number raises
        `errors.OptionError`. Before transformers 5.15, a positive number is the number of tokens to keep, and
        before 5.14, 0 is too.
        """
        number = _integers.within("tokens_to_remove", tokens_to_remove, -(2**63), _LARGEST_CROP)
        tokens = self.cumulative_length.clone()
        if number >= _LEAST_TO_KEEP:
            self.cumulative_length.clamp_(max=number)
        else:
            self.cumulative_length.add_(number).clamp_(min=0)
        if not self.is_initialized:
            return
        assert self.keys is not None and self.values is not None, "they have been allocated"
        if _is_traced(self.keys):
            slots = torch.arange(self.max_cache_len, device=self.keys.device)
            dropped = (slots >= self.cumulative_length)[:, None]
            for held in self._held():
                held.masked_fill_(dropped, 0)
        else:
            self._clear(int(self.cumulative_length), int(tokens))


class KvRingLayer(_Layer):
    """The last keys and values of a layer with a sliding window or chunks, ``[batch, heads, slots, head_size]``
    each, written in place.

    Position ``p`` is in slot ``p % slots``. There are ``sliding_window - 1 + max(rewind, 1)`` slots, but not
    more than ``max_cache_len``. `update` takes any number of rows. `crop` removes up to ``rewind`` tokens. `KvCache`
    describes ``cache_type`` and ``rotation``.

    `torch.export` is refused. The number of tokens is a Python integer, which a program would keep as a
    constant.
    """

    is_sliding = True
    _mode = "circular"

    def __init__(
        self,
        max_cache_len: int,
        sliding_window: int,
        rewind: int,
        *,
        cache_type: CacheType | None = None,
        rotation: bool = True,
    ) -> None:
        slots = min(sliding_window - 1 + max(rewind, 1), max_cache_len)
        super().__init__(slots, cache_type, rotation)  # it allocates the slots
        self.max_tokens = max_cache_len
        self.sliding_window = sliding_window
        self.is_croppable = rewind > 0
        self.length = 0
        """The number of tokens, which is the position of the next one."""
        self.high = 0
        """One more than the furthest position written since the layer was empty. `crop` does not lower it."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes new keys and values after the old ones. Returns those that the new queries see, in the order
        of their positions.

        Both are ``[batch, heads, rows, head_size]`` and may have any strides. With
        ``attn_implementation="kvscatter"``, which reads rings, the result is the ring itself. Otherwise, it is a view
        of the ring. It is a copy if it wraps around the end of the ring, if the write overwrites rows that the new
        queries see, or if rows are stored in another type than the model's. A later update overwrites the view.
        transformers makes masks for consecutive positions, so the order of the slots cannot be returned.
        More than ``max_cache_len`` tokens raise `errors.PositionError` before anything is written.
        """
        if torch.compiler.is_exporting():
            message = "a layer with a sliding window: torch.export would keep the number of its tokens as a constant"
            raise errors.OptionError(message, "layer_type", "config")
        start, rows = self.length, key_states.shape[-2]
        end = _end(start, rows, self.max_tokens)
        self._allocate(key_states, value_states)
        held, stored = self._held(), self._stored(key_states, value_states)
        first = self._first_seen()
        high = max(self.high, end) if start > 0 else end
        if high - first <= self.max_cache_len:  # the inequality of the Rust module `ring`
            self._write_before(end, stored)
            if self._is_read_in_place():
                self.length, self.high = end, high
                self._written()
                keys, values = (_interface.as_ring(cache, end, end - first) for cache in held)
                return keys, values
            seen = [self._rows(cache, first, end) for cache in held]
        else:
            # The write overwrites rows that the new queries see, so these are copied first. They are still
            # there, because `crop` refuses to go back further.
            seen = [
                self._rows(cache, first, start, states) for cache, states in zip(held, stored, strict=True)
            ]
            self._write_before(end, stored)
        self.length, self.high = end, high
        self._written()
        return self._read(seen)

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        """Returns the number of rows that `update` returns for ``query_length`` new rows, and the position
        of the first one.

        Before transformers 5.4, the argument has the positions of the new rows.
        """
        rows = query_length.shape[0] if isinstance(query_length, torch.Tensor) else query_length
        first = self._first_seen()
        return self.length + rows - first, first

    def get_seq_length(self) -> int:
        """Returns the number of tokens so far, including those that the ring no longer contains."""
        return self.length

    def get_max_length(self) -> int:
        """Returns ``max_cache_len`` of the cache, which is not the number of slots."""
        return self.max_tokens

    @property
    def removable(self) -> int:
        """The largest number of tokens that `crop` can remove. It can also remove all of them."""
        lost = self.high - self.max_cache_len  # positions below have been overwritten
        return self.length if lost <= 0 else self.length - lost - (self.sliding_window - 1)

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last ``-tokens_to_remove`` tokens, or all if there are fewer. The next tokens
        overwrite them.

        The number is 0 or negative. If the ring no longer contains what the next query sees,
        this raises `errors.OptionError` with the limit. The limit counts from the furthest token: after 5
        removed, 1 new and 5 removed tokens, 9 of the ``rewind`` tokens are used. Before transformers 5.15, a
        positive number is the number of tokens to keep, and before 5.14, 0 is too.
        """
        self.length += self.check_crop(tokens_to_remove)

    def check_crop(self, tokens_to_remove: int) -> int:
        """Raises the errors of `crop`. Returns by how much the number of tokens changes."""
        given = _integers.within("tokens_to_remove", tokens_to_remove, -(2**63), _LARGEST_CROP)
        keeps = given >= _LEAST_TO_KEEP
        change = min(given - self.length, 0) if keeps else max(given, -self.length)
        if -self.length < change < -self.removable:
            least, most = (self.length - self.removable, self.length) if keeps else (-self.removable, 0)
            message = (
                f"tokens_to_remove = {given}: must be from {least} to {most}, because a sliding window keeps no more "
                "tokens: increase rewind"
            )
            raise errors.OptionError(
                message, "integer_range", "tokens_to_remove", value=given, min=least, max=most
            )
        return change

    def _forget(self) -> None:
        super()._forget()
        self.length = self.high = 0

    def _is_read_in_place(self) -> bool:
        """Returns True if attention can read the ring as it is."""
        is_ours = self._attention() == _interface.NAME
        return is_ours and self._element_type is None and not _interface.are_operators_recorded()

    def _first_seen(self) -> int:
        """Returns the first position that the next query sees."""
        return max(self.length - self.sliding_window + 1, 0)

    def _write_before(self, end: int, stored: list[torch.Tensor]) -> None:
        """Writes rows before position ``end``, or the last ones if there are more than slots."""
        if stored[0].shape[-2] > self.max_cache_len:
            stored = [rows[:, :, -self.max_cache_len :] for rows in stored]
        self._write(stored, (end - stored[0].shape[-2]) % self.max_cache_len)

    def _rows(self, cache: torch.Tensor, first: int, end: int, *newer: torch.Tensor) -> torch.Tensor:
        """Returns the rows of the positions ``first`` to ``end - 1``, and ``newer`` rows after them."""
        slot = first % self.max_cache_len
        wrapped = max(slot + end - first - self.max_cache_len, 0)
        pieces = [cache[:, :, slot : slot + end - first - wrapped]] if end > first else []
        if wrapped > 0:
            pieces.append(cache[:, :, :wrapped])
        pieces.extend(newer)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-2)


def _end(start: int, rows: int, max_cache_len: int) -> int:
    """Returns the position after new rows. They must be within ``max_cache_len``."""
    end = start + rows
    if end > max_cache_len:
        message = (
            f"the cache has {start} tokens: {start} + {rows} rows exceed max_cache_len = {max_cache_len}"
        )
        raise errors.PositionError(
            message, "start_out_of_range", None, value=start, rows=rows, capacity=max_cache_len
        )
    return end


def _is_traced(tensor: torch.Tensor) -> bool:
    """Returns True if the number of tokens is not known, because operators are recorded or because tensors have no
    memory."""
    return _interface.are_operators_recorded() or type(tensor) is FakeTensor or tensor.is_meta


def _needs_gradient(tensor: torch.Tensor) -> bool:
    """Returns True if the gradient of a program that runs now would be lost. Exported programs have none."""
    return torch.is_grad_enabled() and tensor.requires_grad and not torch.compiler.is_exporting()


def _in_place(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Returns a context in which a tensor can be written in place, also if it was made in inference mode."""
    return nullcontext() if torch.compiler.is_compiling() else torch.inference_mode(tensor.is_inference())


def _positions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Returns the positions of the new rows, which models before transformers 5.4 pass to `update`."""
    options = args[0] if args else kwargs.get("cache_kwargs")
    positions = options.get("cache_position") if isinstance(options, dict) else None
    return positions if positions is not None and positions.ndim == 1 and positions.shape[0] > 0 else None


def _kinds(config: Any) -> set[str]:
    """Returns the types of layers of a config, as far as it names them."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return set(kinds)
    # Older versions name the layers of recurrent models in other ways.
    kinds = set(getattr(config, "layers_block_type", None) or ()) - {"attention"}
    kinds |= {"mamba" for name in ("mamba_d_state", "state_size") if hasattr(config, name)}
    # GPT-Neo takes the number of slots for the number of tokens.
    return kinds | ({config.model_type} & {"gpt_neo", "rwkv", "xlstm"})


_OWN_MASKS = {"kyutai_speech_to_text", "mimi", "moshi", "moshi_depth", "phimoe", "qwen2_moe"}
"""Models that make masks of all slots themselves before transformers 5.15, so that none of their layers can be a
ring."""


class KvCache(StaticCache):  # type: ignore[misc]
    """A cache of ``max_cache_len`` positions for the model of ``config``, in place of
    `transformers.StaticCache`.

    A layer whose sliding window or chunk has fewer positions than that is a `KvRingLayer`. Its memory depends on the
    window and on ``rewind``. A layer with a larger window or full attention is a `KvLayer`. A layer of any other type
    raises `errors.OptionError`.

    ``rewind`` is how many tokens `crop` can remove once a window has moved. Assisted decoding removes at most
    as many as it drafts at once.

    ``cache_type`` is the type in which keys and values are stored, ``"float32"``, ``"float16"``, ``"bfloat16"`` or
    ``"int8"``, and the model's by default. `update` returns them in the model's type, so attention is computed as
    before, on what is stored. ``"float16"`` stores infinity for numbers above 65,504. ``"int8"`` has one float32 scale
    for each token and head in ``key_scales`` and ``value_scales``, so a head of 64 elements takes 68 bytes. Each stored
    element differs from the given one by at most ``scale * (1/2 + 2**-16)``, with ``scale = max|row| / 127``. The
    Rust module ``kvscatter::quantize`` states the rule.

    With ``rotation``, int8 keys are multiplied by an orthonormal Hadamard matrix before they are stored, and again when
    they are read, which loses less. Heads whose size is not a multiple of 16 are not rotated. Another ``cache_type``
    raises `errors.OptionError`. Gradients do not pass through an int8 cache, so it raises that error for tensors that
    require them outside of ``torch.no_grad()``.
    """

    def __init__(
        self,
        config: Any,
        max_cache_len: int,
        *,
        rewind: int = 32,
        cache_type: CacheType | None = None,
        rotation: bool = True,
    ) -> None:
        max_cache_len = _integers.within("max_cache_len", max_cache_len, 1, 2**63 - 1)
        rewind = _integers.within("rewind", rewind, 0, 2**63 - 1)
        layers: list[Any] = []
        text = config.get_text_config(decoder=True)
        other = _kinds(text) - _KINDS
        if not other:
            # It finds each layer's window in the config, and allocates nothing before its first write.
            try:
                layers = StaticCache(config, max_cache_len).layers
            except TypeError as error:
                message = "a layer of config has a window without a size: set sliding_window or attention_chunk_size"
                raise errors.OptionError(message, "layer_type", "config") from error
            other = {type(layer).__name__ for layer in layers} - {"StaticLayer", "StaticSlidingWindowLayer"}
        if other:
            found, known = (", ".join(sorted(names)) for names in (other, _KINDS))
            message = f"layers of type {found}: KvCache has layers of type {known}"
            raise errors.OptionError(message, "layer_type", "config")
        if not layers:
            message = "config has no layers, or has num_kv_shared_layers = 0, which needs transformers 5.10"
            raise errors.OptionError(message, "layer_type", "config")
        if _BEFORE_5_15 and text.model_type in _OWN_MASKS:
            layers = [StaticLayer(max_cache_len) for _ in layers]
        stored: Any = {"cache_type": cache_type, "rotation": rotation}
        windows = [_integers.within("sliding_window", layer.max_cache_len, 1, 2**63 - 1) for layer in layers]
        Cache.__init__(
            self,
            layers=[
                KvRingLayer(max_cache_len, window, rewind, **stored)
                if window < max_cache_len
                else KvLayer(max_cache_len, **stored)
                for window in windows
            ],
        )
        for made in self.layers:
            if isinstance(made, _Layer):
                made.config = text

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Calls `update` of a layer. Before transformers 5.4, a model passes positions. Where they go back, full layers
        follow them, and a cache with rings raises `errors.OptionError` before anything is written, except in a
        compiled model."""
        positions = _positions(args, kwargs) if layer_idx == 0 else None
        if positions is not None and not torch.compiler.is_compiling():
            lengths = [layer.length for layer in self.layers if isinstance(layer, KvRingLayer)]
            if lengths and (first := int(positions[0])) < max(lengths):
                message = (
                    f"cache_position[0] = {first}: a ring of {max(lengths)} tokens goes back only by crop"
                )
                raise errors.OptionError(message, "cache_position", "cache_position", value=first)
        written: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return written

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last ``-tokens_to_remove`` tokens of every layer. If one layer refuses, no layer
        changes.

        See `KvLayer.crop` and `KvRingLayer.crop`.
        """
        for layer in self.layers:
            if isinstance(layer, KvRingLayer):
                layer.check_crop(tokens_to_remove)
        super().crop(tokens_to_remove)
