"""JAX: dynamic_update_slice into donated arrays, on JAX's own stream and in JAX's own memory."""

import os

# This is set before JAX is imported. JAX then takes memory only as needed, because PyTorch needs some too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import torch
from torch.utils.dlpack import from_dlpack

from cases import Case
from memory import Memory, Tensors
from way import Absent, Role, Way

# The share of the device's memory for JAX's caches, which must fit next to PyTorch's.
SHARE = 0.3

Arrays = list[jax.Array]


def ways(memory: Memory) -> list[Way]:
    """Returns one way, which writes all tensors in one compiled call."""
    device = memory.device
    if device.type != jax.default_backend().replace("gpu", "cuda"):
        raise Absent(f"this JAX computes on {jax.default_backend()}")
    caches = [sum(block.whole.nbytes for block in blocks) for blocks in memory.written]
    if device.type == "cuda" and sum(caches) > SHARE * torch.cuda.get_device_properties(device).total_memory:
        raise Absent("not enough memory for separate caches")
    donated = Donated(memory)
    if not memory.pasts:
        donated.check_in_place()
    return [donated.way()]


class Donated:
    """Arrays that each write donates and gets back. If a past is kept, there is no donation."""

    def __init__(self, memory: Memory) -> None:
        """Copies everything to JAX."""
        self.memory = memory
        self.case: Case = memory.case
        # The caches before a write, whose addresses are compared.
        self.caches: list[Arrays] = []
        self.pasts = [arrays(tensors) for tensors in memory.pasts]
        self.updates = [arrays(tensors) for tensors in memory.updates]
        self.starts = [jnp.asarray(write.starts, jnp.int32) for write in memory.writes]
        self.step = jax.jit(self._step, donate_argnums=() if self.pasts else 0)
        self.start_over()

    def way(self) -> Way:
        """Returns the way, whose own stream no CUDA graph of ours can capture."""
        return Way(
            "JAX dynamic_update_slice",
            Role.PEER,
            self.write,
            is_capturable=False,
            wait=self.wait,
            caches=self.as_tensors,
            start_over=self.start_over,
        )

    def start_over(self) -> None:
        """Copies the current caches."""
        self.caches = [arrays(tensors) for tensors in self.memory.caches]

    def write(self, number: int) -> None:
        """Calls the compiled step."""
        at = self.memory.writes[number]
        given = self.pasts[at.caches] if self.pasts else self.caches[at.caches]
        self.caches[at.caches] = self.step(given, self.updates[at.update], self.starts[number])

    def wait(self) -> None:
        """Waits for all work that was enqueued."""
        jax.block_until_ready(self.caches)

    def check_in_place(self) -> None:
        """Checks that a donated array is returned at the same address."""
        at = self.memory.writes[0].caches
        before = [array.unsafe_buffer_pointer() for array in self.caches[at]]
        self.write(0)
        if [array.unsafe_buffer_pointer() for array in self.caches[at]] != before:
            raise Absent("donated arrays are copied")

    def as_tensors(self) -> list[Tensors]:
        """Returns the same memory as PyTorch's tensors."""
        self.wait()
        return [[from_dlpack(array) for array in group] for group in self.caches]

    def _step(self, caches: Arrays, updates: Arrays, starts: jax.Array) -> Arrays:
        def one(cache: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice(cache, update, (0, start, 0))

        def write(cache: jax.Array, update: jax.Array) -> jax.Array:
            if self.case.is_ragged:
                return jax.vmap(one)(cache, update, starts)
            return jax.lax.dynamic_update_slice(cache, update, (0, 0, starts[0], 0))

        return [write(cache, update) for cache, update in zip(caches, updates, strict=True)]


def arrays(tensors: Tensors) -> Arrays:
    """Returns copies, which JAX may donate."""
    if tensors[0].is_cuda:
        torch.cuda.synchronize()
    copies = [jnp.copy(jnp.from_dlpack(tensor)) for tensor in tensors]
    return list(jax.block_until_ready(copies))
