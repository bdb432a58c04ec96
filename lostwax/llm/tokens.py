"""Greedy tokens of an exported model in the ExecuTorch runtime, called as its runner calls it, and
their comparison with a model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lostwax.errors import CheckError, LoadError
from lostwax.llm.quantizing import is_quantized
from lostwax.pte.runtime import load_runtime


@dataclass(frozen=True)
class TokensCheck:
    """What a comparison of tokens has found. It is true if all were equal."""

    counts: dict[int, int]
    """How many tokens were compared, by the length of the prompt."""
    difference: str = ""

    @property
    def ok(self) -> bool:
        """Were all tokens the same?"""
        return not self.difference

    def __bool__(self) -> bool:
        return self.ok

    def raise_on_difference(self) -> None:
        """Raise a `CheckError` that says where they first differ."""
        if self.difference:
            raise CheckError(self.difference)


def generate(
    file: bytes, prompt: Sequence[int], count: int, context: int, length: int
) -> list[int]:
    """The most likely tokens after a prompt: the prompt in as few calls as its length takes, then
    one token a call."""
    if not prompt:
        raise LoadError("a prompt has at least one token")
    if len(prompt) + count > context:
        raise LoadError(
            f"a prompt of {len(prompt)} tokens and {count} new ones are more than the file keeps, "
            f"{context}\n  instead: fewer tokens, or export the model with a larger context"
        )
    runtime, tokens = load_runtime(file), list(prompt)
    at = 0
    while len(tokens) < len(prompt) + count:
        given = tokens[at : at + length]
        positions = torch.arange(at, at + len(given))
        (logits,) = runtime.run([torch.tensor([given]), positions])
        at += len(given)
        if at == len(tokens):
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def compare_tokens(
    file: bytes, model: Any, context: int, length: int, prompts: Sequence[Sequence[int]] | None
) -> TokensCheck:
    """Compare the tokens after some prompts with those of `model.generate`: 64, and once so many
    that the context is full."""
    words = model.config.get_text_config(decoder=True).vocab_size
    drawn = torch.Generator().manual_seed(0)
    if prompts is None:
        sizes = [size for size in (1, 2, 17) if size < context]
        prompts = [torch.randint(words, (n,), generator=drawn).tolist() for n in sizes]
    counts: dict[int, int] = {}
    for prompt in prompts:
        fill = prompt is prompts[-1]
        count = context - len(prompt) if fill else min(64, context - len(prompt))
        found = generate(file, prompt, count, context, length)
        wanted = _generate_eagerly(model, prompt, count)
        if found != wanted and is_quantized(model):
            # Rounding of activations makes large differences of small ones: its tokens with a cache
            # and without may be others. The file's are to be one or the other.
            wanted = _generate_eagerly(model, prompt, count, use_cache=False)
        if found != wanted:
            at = next(i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b)
            return TokensCheck(
                counts,
                f"token {at} after the prompt {list(prompt)} is {found[at]}; the model's is "
                f"{wanted[at]}",
            )
        counts[len(prompt)] = count
    return TokensCheck(counts)


def _generate_eagerly(
    model: Any, prompt: Sequence[int], count: int, use_cache: bool = True
) -> list[int]:
    """The model's own tokens, past any that ends a text."""
    done: torch.Tensor = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=count,
        min_new_tokens=None,
        do_sample=False,
        num_beams=1,
        use_cache=use_cache,
        eos_token_id=None,
    )
    return done[0, len(prompt) :].tolist()
