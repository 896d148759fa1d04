"""The code that type checkers must reject. Both must report each line, because an unused ignore is an error
too."""

import numpy as np
from numpy.typing import NDArray

import kvscatter
from kvscatter import cuda, reference


def refused(cache: NDArray[np.float16], update: NDArray[np.float16]) -> None:
    kvscatter.tensor_scatter_(cache, update, [0.5])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    kvscatter.tensor_scatter_(cache, update, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kvscatter.tensor_scatter_(cache, [1.0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kvscatter.tensor_scatter_(cache, update, axis="sequence")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kvscatter.tensor_scatter_(cache, update, mode="ring")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kvscatter.tensor_scatter(cache, update, out_of_range="skip")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kvscatter.kv_cache_update_(cache, update)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kvscatter.prepare((2, 4, 8), (2, 1, 8))  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    kvscatter.prepare(cache, update, dtype="float16")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    kvscatter.plan((2, 4, 8), (2, 1, 8), [0, 1], dtype="float16").bytes = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    kvscatter.Prepared()(cache)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    reference.answer(reference.tensor_scatter, cache)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kvscatter.generate("model.onnx", [1, 2], 8)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    kvscatter.generate("folder", "text", temprature=1.0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    kvscatter.Generator("folder", top_k=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def refused_on_cuda(cache: NDArray[np.float16], write: cuda.Write) -> None:
    cuda.prepare([cache])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    cuda.prepare([(cache, cache)], [0, 1])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cuda.prepare_slots([(cache, cache)])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    write.launch("stream")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def refused_of_a_session(session: kvscatter.KvSession) -> None:
    session.step({0: [1]})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    session.step({session.add(): "text"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    session.begin(0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    session.transaction([session.add()])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    session.reorder(session.add(), [0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    session.batch = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
