"""The base class of adapters. Scripts that replay a history contain a copy of this file, so it imports nothing."""

from __future__ import annotations


class Refused(Exception):
    """An engine refuses an operation. Its cache must be as it was before."""


class EngineError(Exception):
    """An adapter is incomplete, or its engine cannot be tested with a history."""


class Engine:
    """Describes one engine with a KV cache to :func:`kvscatter.histories.check`.

    A subclass sets facts and writes methods. `start` and `feed` are required. The other operations are used if the
    subclass has them. A cache has one or more *samples*, which are the rows of a batch and are named by their index.

    ======================== ===========================================================================
    ``start(samples)``       Forgets everything. The cache then has this many empty samples.
    ``feed(rows)``           Runs the model. ``rows`` has a list of token ids for each sample, which may be
                             empty if `ragged`. Returns one array for each sample: the logits after each new
                             token, ``[len(row), vocabulary]``, or after the last one only, ``[vocabulary]``.
                             An engine with `paddings` gets ``feed(rows, padding)``.
    ``truncate(lengths)``    Takes samples back. ``lengths`` has the length of each sample. If `ragged`, one of them
                             is shorter than before, and otherwise all are.
    ``begin()``              Sets a point in each sample, before tokens that may be dropped. It replaces an earlier
                             point. Optional.
    ``accept(counts)``       Keeps the first ``counts[i]`` of the tokens that were fed to sample i since
                             ``begin``, and drops the others. Called only while all samples have a point. A
                             sample loses it when it is accepted or truncated below it. Copies, loaded and
                             added samples have none.
    ``add()``                Appends an empty sample.
    ``fork(sample)``         Appends a copy of a sample.
    ``remove(sample)``       Removes a sample. Later samples move up.
    ``reorder(parents)``     Sample i becomes a copy of sample ``parents[i]``, as in a beam search.
    ``save(sample, path)``   Writes a sample to a file. The path has no suffix.
    ``load(sample, path)``   Replaces a sample by a saved one.
    ``set_adapter(name)``    Makes later logits those of another adapter, such as a LoRA.
    ``poison()``             Writes NaN into every slot that no query may see again.
    ``reference(tokens)``    Returns the right logits of a text, ``[len(tokens), vocabulary]``. Without it, the
                             engine itself computes them with an empty cache. If there are `adapters`, it is
                             called with the name of the adapter too.
    ======================== ===========================================================================

    A method that cannot run here raises :class:`Refused`, or an exception that `refusals` lists. The
    cache must then be as before, and later steps test that.
    """

    name: str = ""
    """What reports call the engine, such as ``transformers 5.24.0, sliding``. The default is the name of the class."""
    vocabulary: int = 0
    """The number of tokens. It must be set."""
    tokens: range | None = None
    """The token ids that may be fed. The default is all but 0, which often pads."""
    windows: tuple[int, ...] = ()
    """The sliding windows of the layers: a token sees itself and the W - 1 tokens before it."""
    capacity: int | None = None
    """The most tokens of a sample, or None if the cache grows or is a ring. A step that would exceed it must be
    refused, and every other step must be accepted."""
    edges: tuple[int, ...] = ()
    """Other lengths where something changes, such as the slots of a ring or the size of a page."""
    longest: int | None = None
    """The most tokens of a sample in a history. The default is the capacity up to 512, or a little more than three
    times the largest window or edge, or 64."""
    max_feed: int | None = None
    """The most tokens of a sample in one ``feed``, or None if every number is possible."""
    batch: int = 1
    """The most samples."""
    ragged: bool = False
    """Whether samples can have different lengths and can be fed different numbers of tokens."""
    paddings: tuple[str, ...] = ()
    """The sides on which ``feed`` can pad rows of different lengths, such as ``("left", "right")``."""
    adapters: tuple[str, ...] = ()
    """The names for ``set_adapter``. The first one is active after ``start``."""
    lacks: tuple[str, ...] = ()
    """The methods that this engine has only in other variants."""
    tolerance: float = 1e-4
    """The largest difference at which logits count as equal, as a part of the largest logit of the token."""
    refusals: tuple[type[Exception], ...] = ()
    """Exceptions that mean the same as :class:`Refused`."""

    def start(self, samples: int) -> None:
        """Forgets everything, and begins with this many empty samples."""
        raise NotImplementedError

    def feed(self, rows: list[list[int]]) -> object:
        """Runs the model on a list of tokens for each sample, and returns the logits of each."""
        raise NotImplementedError
