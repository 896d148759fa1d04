"""PyTorch: index_copy_, index_put_, and both compiled.

The index tensors of the first two are made beforehand, as in a model that makes them once for all its layers.
The compiled way makes them from the starts.
"""

from collections.abc import Callable

import torch

from cases import HEADS, WIDTH, Case
from memory import Memory, Tensors
from way import Role, Way


def ways(memory: Memory) -> list[Way]:
    """Returns three ways, all on the current stream."""
    return [
        Way("torch index_copy_", Role.PEER, index_copy(memory)),
        Way("torch index_put_", Role.PEER, index_put(memory)),
        Way("torch.compile", Role.PEER, compiled(memory)),
    ]


def index_copy(memory: Memory) -> Callable[[int], None]:
    """Copies along the sequence. If each sample has another start, it copies into the rows of one long list."""
    case, slots = memory.case, all_slots(memory)
    if not case.is_ragged:
        columns = [row[0].contiguous() for row in slots]
        return each(memory, lambda number: lambda to, new: to.index_copy_(2, columns[number], new))
    rows = [row_numbers(case, row).flatten() for row in slots]

    def write(number: int) -> Callable[[torch.Tensor, torch.Tensor], object]:
        return lambda to, new: to.view(-1, WIDTH).index_copy_(0, rows[number], new.view(-1, WIDTH))

    return each(memory, write)


def index_put(memory: Memory) -> Callable[[int], None]:
    """Puts with an index for each of batch, head and slot."""
    case, slots = memory.case, all_slots(memory)
    sample, head = samples_and_heads(case, slots.device)
    where = [(sample, head, row[:, None, :]) for row in slots]
    return each(memory, lambda number: lambda to, new: to.index_put_(where[number], new))


def compiled(memory: Memory) -> Callable[[int], None]:
    """Writes a pair of tensors at a time, as in a layer."""
    case = memory.case
    sample, head = samples_and_heads(case, memory.device)

    def into(present: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> None:
        steps = torch.arange(case.rows, device=starts.device)
        if case.is_ragged:
            slots = starts[:, None, None] + steps
            present.index_put_((sample, head, slots), update)
        else:
            present.index_copy_(2, starts[0] + steps, update)

    def pair(to: Tensors, old: Tensors, new: Tensors, starts: torch.Tensor) -> None:
        for number, present in enumerate(to):
            if old:
                present.copy_(old[number])
            into(present, new[number], starts)

    # Every case begins without compiled functions of other cases, because PyTorch keeps only a few.
    torch._dynamo.reset()
    backend = "inductor" if memory.device.type == "cuda" else "eager"
    step = torch.compile(pair, dynamic=False, fullgraph=True, backend=backend)
    caches, pasts, updates = memory.caches, memory.pasts, memory.updates
    starts = memory.starts

    def write(number: int) -> None:
        at = memory.writes[number]
        for k in range(0, case.tensors, 2):
            old = pasts[at.caches][k : k + 2] if pasts else []
            step(caches[at.caches][k : k + 2], old, updates[at.update][k : k + 2], starts[number])

    return write


def each(
    memory: Memory, writer: Callable[[int], Callable[[torch.Tensor, torch.Tensor], object]]
) -> Callable[[int], None]:
    """Writes one tensor after the other, with the writer of the numbered write."""
    caches, pasts, updates = memory.caches, memory.pasts, memory.updates
    writers = [writer(number) for number in range(len(memory.writes))]

    def write(number: int) -> None:
        at, into = memory.writes[number], writers[number]
        for k, cache in enumerate(caches[at.caches]):
            if pasts:
                cache.copy_(pasts[at.caches][k])
            into(cache, updates[at.update][k])

    return write


def all_slots(memory: Memory) -> torch.Tensor:
    """Returns the slots, as `[writes, batch, rows]`."""
    return torch.stack(memory.starts)[:, :, None] + torch.arange(memory.case.rows, device=memory.device)


def row_numbers(case: Case, slots: torch.Tensor) -> torch.Tensor:
    """Returns the rows `[batch, heads, rows]` of `[batch * heads * capacity, width]` for slots `[batch, rows]`."""
    sample, head = samples_and_heads(case, slots.device)
    return (sample * HEADS + head) * case.capacity + slots[:, None, :]


def samples_and_heads(case: Case, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the indices of samples and heads, as `[batch, 1, 1]` and `[1, heads, 1]`."""
    return (
        torch.arange(case.batch, device=device)[:, None, None],
        torch.arange(HEADS, device=device)[None, :, None],
    )
