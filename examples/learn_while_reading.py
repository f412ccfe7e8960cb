"""A recurrent network that learns while it reads: character by character, with one pass over the text.

    python examples/learn_while_reading.py --output training/reading

The text is the documentation that comes with Python. Eight chapters are read side by side. At each character, the
network guesses the next one, sees which it was, and learns from it: with eligibility traces nothing has to be kept of
what was read, however long it is. Params are updated every eighth character. The table shows how many bits the network
needs for a character: 6.6 is a blind guess. No model sees a character before it has guessed it.

Stop it and run it again: it goes on with the character at which it was saved last, and ends with the same weights, to
the last bit.
"""

import argparse
import math
import time
from itertools import islice, pairwise
from pathlib import Path

import numpy
from thinc.api import Embed, Model, Softmax, fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.corpora import load_topics
from thinc_torchopt.layers import OnlineRNN, OnlineTrainer
from thinc_torchopt.torch_optimizers import AdamW

STREAMS = 8
# The printable characters of ASCII, and one for all others.
CHARACTERS = {chr(code): i for i, code in enumerate([10, *range(32, 127)])}
OTHER = len(CHARACTERS)


def read_streams(length: int) -> numpy.ndarray:
    """The chapters one after another, divided among the streams. RETURNS (Ints2d): Shape: (length + 1, STREAMS)."""
    topics = load_topics()
    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = numpy.array([CHARACTERS.get(character, OTHER) for character in text], dtype="i")
    each = len(codes) // STREAMS
    return codes[: each * STREAMS].reshape(STREAMS, each).T[: length + 1]


def build(width: int, learn_rate: float) -> OnlineTrainer:
    """The network: embeddings, a GRU, and a layer that gives a probability to each character."""
    fix_random_seed(0)
    embed: Model = Embed(32, OTHER + 1)
    rnn: Model = OnlineRNN(width, 32, cell="torch-gru")
    output: Model = Softmax(OTHER + 1, width)
    embed.initialize()
    rnn.initialize()
    output.initialize()
    models = {"embed": embed, "rnn": rnn, "output": output}
    optimizer = TorchOptimizer(AdamW(weight_decay=0.0), learn_rate, grad_clip=1.0)
    return OnlineTrainer(rnn, optimizer, batch_size=STREAMS, update_every=8, models=models)


def read(trainer: OnlineTrainer, here: numpy.ndarray, following: numpy.ndarray) -> float:
    """Read a character of each stream, having guessed the one that follows. RETURNS (float): Bits for a character."""
    embed, output = trainer.models["embed"], trainer.models["output"]
    x, back_embed = embed(here, is_train=True)
    guess, back_output = output(trainer.predict(x), is_train=True)
    rows = numpy.arange(STREAMS)
    bits = -numpy.log2(guess[rows, following] + 1e-9).mean()
    guess[rows, following] -= 1.0  # the gradient of the cross entropy
    back_embed(trainer.update(x, back_output(guess / (STREAMS * trainer.update_every))))
    return float(bits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("training/reading"), help="Folder for the state.")
    parser.add_argument("--characters", type=int, default=20_000, help="How many to read of each of the 8 streams.")
    parser.add_argument("--every", type=int, default=2_000, help="Save, and print a line, after so many.")
    parser.add_argument("--width", type=int, default=64, help="Units of the GRU.")
    parser.add_argument("--learn-rate", type=float, default=0.005)
    args = parser.parse_args()
    text = read_streams(args.characters)
    trainer = build(args.width, args.learn_rate)
    state = args.output / "state"
    if state.is_dir():
        trainer.from_disk(state)
        print(f"Going on after {trainer.tokens:,} characters of each stream.")
    bits, start = [], time.perf_counter()
    for here, following in islice(pairwise(text), trainer.tokens, None):
        bits.append(read(trainer, here, following))
        if trainer.tokens % args.every == 0:
            mean = math.fsum(bits) / len(bits)
            speed = len(bits) * STREAMS / (time.perf_counter() - start)
            print(
                f"{trainer.tokens:8,} characters   {mean:.3f} bits for a character   {speed:,.0f} a second", flush=True
            )
            trainer.to_disk(state)
            bits, start = [], time.perf_counter()


if __name__ == "__main__":
    main()
