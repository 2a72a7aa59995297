"""Learn to write words backwards, from nothing, in half a minute; then look at what a head attends to.

This is the whole library in one page: build a model, train it on batches, decode with a cache, and open
a tap on the cross-attention. Words are random letters, so a word of the test part was never seen.
"""

from __future__ import annotations

import random
import time

import torch

import sixfold
from sixfold import BOS, EOS, PAD, Batch, Cache, Sizes, Tap

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FIRST = EOS + 1  # the id of "a"


def word(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randint(3, 9)))


def to_ids(words: list[str]) -> torch.Tensor:
    """Rows of letters, each closed by EOS and filled up with PAD."""
    longest = max(map(len, words)) + 1
    rows = [[FIRST + LETTERS.index(letter) for letter in w] + [EOS] for w in words]
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def batch_of(words: list[str]) -> Batch:
    targets = to_ids([w[::-1] for w in words])
    begin = torch.full((len(words), 1), BOS)
    inputs = torch.cat([begin, targets[:, :-1].masked_fill(targets[:, :-1] == EOS, PAD)], dim=1)
    return Batch(source=to_ids(words), inputs=inputs, targets=targets)


def train(model: sixfold.EncoderDecoder, steps: int, chance: random.Random, tested: set[str]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    started = time.perf_counter()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(step / 50, 1 - (step - 50) / (steps - 50) * 0.9)
        words = [w for w in (word(chance) for _ in range(128)) if w not in tested]
        losses = model(batch_of(words))
        (losses.sum / losses.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            loss = (losses.sum / losses.tokens).item()
            print(f"  step {step}/{steps}   loss {loss:.3f}   {time.perf_counter() - started:.0f} s")


@torch.no_grad()
def reverse(model: sixfold.EncoderDecoder, words: list[str]) -> list[str]:
    """Greedy decoding: feed each letter back until every row has ended."""
    cache = Cache(model.encode(to_ids(words)))
    letters = torch.full((len(words), 1), BOS)
    written: list[torch.Tensor] = []
    for _ in range(12):
        letters = model.log_probs(model.decode(letters, cache=cache)).argmax(-1)
        written.append(letters)
    rows = torch.cat(written, dim=1).tolist()
    return [
        "".join(LETTERS[i - FIRST] for i in row[: row.index(EOS)] if i >= FIRST) if EOS in row else "" for row in rows
    ]


@torch.no_grad()
def picture(model: sixfold.EncoderDecoder, text: str) -> None:
    """Print the cross-attention of the last layer, averaged over heads: what is read for each letter written."""
    batch, tap, name = batch_of([text]), Tap("decoder.*.cross"), f"decoder.{model.sizes.decoder_layers - 1}.cross"
    model.decode(batch.inputs, model.encode(batch.source), tap=tap)
    weights = tap[name][0].mean(0)  # (L, M)
    print("  writes   reads  " + " ".join(text) + " ⏎")
    for letter, row in zip(text[::-1] + "⏎", weights.tolist(), strict=True):
        print(f"  {letter}               " + " ".join(" ░▒▓█"[min(int(w * 5), 4)] for w in row))


def main() -> None:
    chance = random.Random(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)  # so small a model gains nothing from more
    tested = {word(chance) for _ in range(500)}
    sizes = Sizes(
        vocab=FIRST + len(LETTERS), d_model=64, d_ff=256, heads=4, encoder_layers=2, decoder_layers=2, dropout=0
    )
    model = sixfold.build(sizes, modifications=["rotary"])
    print(
        f"A Transformer with {sum(p.numel() for p in model.parameters()):,} parameters learns to write words backwards."
    )
    train(model, 400, chance, tested)
    model.eval()
    words = sorted(tested)
    right = [answer == w[::-1] for w, answer in zip(words, reverse(model, words), strict=True)]
    print(f"\n{sum(right)} of {len(right)} words that it never saw are right. Three of them:\n")
    for w, answer in zip(words[::200], reverse(model, words[::200]), strict=True):
        print(f"  {w} → {answer}")
    print("\nWhat the last layer's cross-attention reads for each letter it writes:\n")
    picture(model, max(words, key=len))
    print("\nGo on with")
    print("  docs/python.md                      more of the library")
    print("  docs/reading-the-transformer.md     what is inside a model")
    print("  docs/your-own-model.md              a model of your own text, on the command line")


if __name__ == "__main__":
    main()
