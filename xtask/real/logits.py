"""Compares the logits of two models, step by step, on the tokens that the first one chooses.

    python logits.py FIRST SECOND THREADS CAPACITY CHUNK COUNT < PROMPTS

PROMPTS is a JSON list of lists of tokens. Prints a JSON list with an object for each prompt: the largest difference of
a logit, and in how many steps both choose the same token.
"""

import json
import sys
from pathlib import Path

import numpy as np
from worker import Kvscatter


def main() -> None:
    """Prints the differences."""
    first, second, *numbers = sys.argv[1:]
    threads, capacity, chunk, count = map(int, numbers)
    engines = [Kvscatter(Path(model), threads, capacity, chunk) for model in (first, second)]
    results = []
    for tokens in json.load(sys.stdin):
        difference, same = 0.0, 0
        for engine in engines:
            engine.reset()
        for _ in range(count):
            logits = [engine.logits(tokens) for engine in engines]
            difference = max(difference, float(np.abs(logits[0] - logits[1]).max()))
            chosen = [int(each.argmax()) for each in logits]
            same += chosen[0] == chosen[1]
            tokens = chosen[:1]
        results.append({"difference": difference, "same": same})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
