"""Continues one prompt in several ways, by beam search or by parallel sampling.

python beam_search.py testdata/mobius-llama-static/model.onnx 5 9 200 --beams 4
python beam_search.py testdata/mobius-llama-static/model.onnx 5 9 200 --sample 4 --temperature 0.8

The model reads the prompt once. Copies of the sample share this work, because `fork` and `reorder` copy its rows
in the caches. The example needs only NumPy and `kvscatter[session]`.
"""

import argparse
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from kvscatter import KvSession


def beam_search(
    session: KvSession, prompt: list[int], beams: int, length: int, eos: Collection[int] = ()
) -> list[tuple[float, list[int]]]:
    """Returns the best continuations of at most `length` tokens with their scores, the best first.

    A score is the sum of the log-probabilities of a continuation. It has no length penalty. The result is that of
    `generate` in transformers with `num_beams=beams`, `early_stopping="never"` and `length_penalty=0.0`. The batch
    needs room for `beams` samples.
    """
    samples = [session.add()]
    logits = session.prefill({samples[0]: prompt})
    scores, tokens = np.zeros(1), [[]]
    ended: list[tuple[float, list[int]]] = []
    for step in range(1, length + 1):
        totals = scores[:, None] + np.stack([log_softmax(logits.last(sample)) for sample in samples])
        # So many that `beams` of them go on, even if every beam could end with every token of `eos`.
        best = np.argsort(-totals, axis=None, kind="stable")[: (1 + max(1, len(eos))) * beams]
        parents, chosen = np.unravel_index(best, totals.shape)
        candidates = [
            (float(totals[parent, token]), int(parent), [*tokens[parent], int(token)])
            for parent, token in zip(parents, chosen, strict=True)
        ]
        ended += [
            (score, continuation)
            for score, _, continuation in candidates[:beams]
            if continuation[-1] in eos or step == length
        ]
        ended = sorted(ended, key=lambda end: -end[0])[:beams]
        live = [candidate for candidate in candidates if candidate[2][-1] not in eos][:beams]
        # Scores only fall, so no continuation of a worse beam can be among the best.
        if step == length or (len(ended) == beams and live[0][0] <= ended[-1][0]):
            break
        scores = np.array([score for score, _, _ in live])
        tokens = [continuation for _, _, continuation in live]
        samples = session.reorder(samples, [parent for _, parent, _ in live])
        logits = session.step({sample: own[-1:] for sample, own in zip(samples, tokens, strict=True)})
    for sample in samples:
        session.remove(sample)
    return ended


def sample_in_parallel(
    session: KvSession, prompt: list[int], count: int, length: int, temperature: float, seed: int
) -> list[list[int]]:
    """Returns `count` random continuations of `length` tokens. The batch needs room for `count` samples."""
    random = np.random.default_rng(seed)
    first = session.add()
    # The copies have the past of the first sample, and its logits.
    last = [session.prefill({first: prompt}).last(first)] * count
    samples = [first, *session.fork(first, count - 1)]
    tokens: list[list[int]] = [[] for _ in samples]
    for step in range(length):
        for own, logits in zip(tokens, last, strict=True):
            probabilities = np.exp(log_softmax(logits / temperature))
            own.append(int(random.choice(len(logits), p=probabilities / probabilities.sum())))
        if step + 1 < length:
            logits = session.step({sample: own[-1:] for sample, own in zip(samples, tokens, strict=True)})
            last = [logits.last(sample) for sample in samples]
    for sample in samples:
        session.remove(sample)
    return tokens


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the log-probabilities of logits."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an ONNX file with static caches, such as kvscatter convert writes")
    parser.add_argument("prompt", type=int, nargs="+", help="the token ids of the prompt")
    parser.add_argument("--beams", type=int, default=4, help="the number of beams (default: 4)")
    parser.add_argument("--sample", type=int, metavar="COUNT", help="sample this many continuations instead")
    parser.add_argument("--tokens", type=int, default=8, help="the number of new tokens (default: 8)")
    parser.add_argument("--eos", type=int, nargs="*", default=[], help="tokens that end a beam")
    parser.add_argument("--temperature", type=float, default=1.0, help="for --sample (default: 1.0)")
    parser.add_argument("--seed", type=int, default=0, help="for --sample (default: 0)")
    parser.add_argument("--capacity", type=int, help="the slots of the caches, if the model leaves them open")
    options = parser.parse_args()
    batch = options.sample or options.beams
    with KvSession(options.model, batch=batch, capacity=options.capacity) as session:
        if options.sample:
            for tokens in sample_in_parallel(
                session, options.prompt, batch, options.tokens, options.temperature, options.seed
            ):
                print(*tokens)
        else:
            for score, tokens in beam_search(session, options.prompt, batch, options.tokens, options.eos):
                print(f"{score:.4f}:", *tokens)


if __name__ == "__main__":
    main()
