"""The shapes that are timed."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """A write of float16 with the sequence at axis -2."""

    cache: tuple[int, int, int, int]
    rows: int
    # The largest allowed ratio of `kvscatter.jax`'s time to JAX's.
    jax_limit: float

    @property
    def label(self) -> str:
        """Returns a short text such as B8 H8 S4096 D128, 1 row."""
        named = " ".join(f"{name}{size}" for name, size in zip("BHSD", self.cache, strict=True))
        return f"{named}, {self.rows} row{'s' * (self.rows > 1)}"


CASES = [
    Case((1, 8, 4096, 128), 1, 1.1),
    Case((8, 8, 4096, 128), 1, 0.9),
    Case((64, 8, 2048, 128), 1, 1.0),
    Case((1, 8, 4096, 128), 512, 1.0),
    Case((8, 8, 2048, 128), 512, 1.0),
]
