"""Language models that choose their next words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program

VOCABULARY, EOS = 6, 0


class TinyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, VOCABULARY)
        with torch.no_grad():
            self.head.bias[EOS] += 0.3

    def logits(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(ids).mean(dim=0)))


@program(ints(1, 2), ints(3, 3), ints(5, 4))
class GreedyGrowing(TinyModel):
    def forward(self, ids: Tensor) -> Tensor:
        while True:
            token = self.logits(ids).argmax()
            ids = torch.cat([ids, token[None]])
            if token == EOS or len(ids) >= 10:
                break
        return ids


@program(ints(1, 2), ints(3, 3), ints(5, 4), ints(0, 0))
class GreedyInABuffer(TinyModel):
    def forward(self, prompt: Tensor) -> tuple[Tensor, int]:
        ids = torch.zeros(10, dtype=torch.int64)
        ids[:2] = prompt
        length = 2
        while length < 10:
            token = self.logits(ids).argmax()
            if token == EOS:
                break
            ids[length] = token
            length += 1
        return ids, length


@program(ints(1, 2), ints(3, 3), ints(5, 4))
class GreedyStepByStep(TinyModel):
    def forward(self, prompt: Tensor) -> Tensor:
        state = self.embedding(prompt).sum(dim=0)
        output = []
        finished = False
        for _ in range(5):
            token = self.head(torch.tanh(state)).argmax()
            if finished:
                token = torch.tensor(EOS)
            output.append(token)
            state = state + self.embedding(token)
            if token == EOS:
                finished = True
        return torch.stack(output)


@program(ints(1, 2), ints(3, 3), ints(5, 4))
class GreedyWithCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.head = nn.Linear(4, VOCABULARY)

    def forward(self, prompt: Tensor) -> Tensor:
        keys = torch.zeros(8, 4)
        keys[:2] = self.embedding(prompt)
        out = torch.full((8,), -1)
        out[:2] = prompt
        position = torch.tensor(2)
        token = prompt[-1]
        while position < 8 and token != EOS:
            query = self.embedding(token)
            mask = torch.arange(8) < position
            weights = (keys @ query).masked_fill(~mask, float("-inf")).softmax(dim=0)
            token = self.head(weights @ keys).argmax()
            keys[position] = self.embedding(token)
            out[position] = token
            position += 1
        return out


@program(draw(4, 5), draw(4, 5, seed=3) * 3, torch.zeros(4, 5))
def beam_search(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    beams = [(torch.zeros(()), torch.zeros(0, dtype=torch.int64))]
    for step in log_probs.log_softmax(dim=-1):
        candidates = []
        for score, tokens in beams:
            values, indices = step.topk(2)
            for value, index in zip(values, indices):
                candidates.append((score + value, torch.cat([tokens, index[None]])))
        candidates.sort(key=lambda c: c[0], reverse=True)
        beams = candidates[:2]
    return beams[0]


@program(draw(3, 5), draw(3, 5, seed=3) * 3, torch.zeros(3, 5))
def beam_search_by_topk(logits: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.tensor([0.0, float("-inf")])
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    done = torch.zeros(2, dtype=torch.bool)
    for t in range(3):
        step = logits[t].log_softmax(dim=-1)
        total = scores[:, None] + step
        scores, flat = total.flatten().topk(2)
        parents, words = flat // 5, flat % 5
        tokens = tokens[parents]
        tokens[:, t] = words
        done = done[parents] | (words == EOS)
        if done.all():
            break
    return scores, tokens


@program(
    floats([9, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9], [0, 0, 9]),
    floats([9, 0, 0], [9, 0, 0], [9, 0, 0], [9, 0, 0], [9, 0, 0]),
    floats([0, 9, 0], [9, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]),
)
def ctc_greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    best = logits.argmax(dim=-1)
    out = torch.zeros(5, dtype=torch.int64)
    length = torch.tensor(0)
    previous = torch.tensor(0)
    for symbol in best:
        if symbol != 0 and symbol != previous:
            out[length] = symbol
            length = length + 1
        previous = symbol
    return out, length


@program(
    floats([9, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9], [0, 0, 9]),
    floats([9, 0, 0], [9, 0, 0], [9, 0, 0], [9, 0, 0], [9, 0, 0]),
    floats([0, 9, 0], [9, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]),
)
def ctc_greedy_to_a_list(logits: Tensor) -> list[int]:
    out = []
    previous = 0
    for symbol in logits.argmax(dim=-1).tolist():
        if symbol != 0 and symbol != previous:
            out.append(symbol)
        previous = symbol
    return out


@program((draw(6), number(0.9)), (draw(6) * 10, number(0.5)), (torch.zeros(6), number(1.1)))
def top_p(logits: Tensor, p: Tensor) -> Tensor:
    probabilities, order = logits.softmax(dim=0).sort(descending=True)
    total = torch.tensor(0.0)
    keep = torch.zeros(6, dtype=torch.bool)
    for i in range(6):
        keep[order[i]] = True
        total = total + probabilities[i]
        if total >= p:
            break
    return logits.masked_fill(~keep, float("-inf"))


@program((draw(6), number(0.9)), (draw(6) * 10, number(0.5)), (torch.zeros(6), number(1.1)))
def top_p_while(logits: Tensor, p: Tensor) -> tuple[Tensor, int]:
    probabilities = logits.softmax(dim=0).sort(descending=True).values
    total, k = probabilities[0], 1
    while k < 6 and total < p:
        total = total + probabilities[k]
        k += 1
    return total, k


@program((draw(5), number(0.0)), (draw(5), number(0.7)), (draw(5) * 3, number(2.0)))
def next_token_probabilities(logits: Tensor, temperature: Tensor) -> Tensor:
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), 5).float()
    if temperature < 1:
        logits = logits - logits.mean()
    return torch.softmax(logits / temperature, dim=-1)


@program(
    (floats(0.5, 0.2, 0.9), floats(0.4, 0.9, 0.8), floats(0.1, 0.9, 0.1)),
    (floats(0.9, 0.9, 0.9), floats(0.5, 0.5, 0.5), floats(0.1, 0.1, 0.1)),
    (floats(0.1, 0.1, 0.1), floats(0.9, 0.9, 0.9), floats(0.9, 0.9, 0.9)),
)
def speculative_acceptance(target: Tensor, draft: Tensor, uniform: Tensor) -> tuple[Tensor, int]:
    accepted = 0
    for p, q, u in zip(target, draft, uniform):
        if u > torch.clamp(p / q, max=1.0):
            break
        accepted += 1
    if accepted == len(target):
        bonus = target[-1]
    else:
        bonus = torch.relu(target - draft).sum()
    return bonus, accepted


@program(
    (ints(1, 2, 3, 4), ints(1, 2, 3, 4)),
    (ints(1, 2, 3, 4), ints(1, 9, 3, 4)),
    (ints(1, 2, 3, 4), ints(9, 2, 3, 4)),
)
def speculative_prefix(draft: Tensor, verified: Tensor) -> tuple[Tensor, Tensor]:
    n = torch.tensor(0)
    while n < 4 and draft[n.clamp(max=3)] == verified[n.clamp(max=3)]:
        n = n + 1
    return n, torch.where(torch.arange(4) < n, draft, verified)


@program((ints(1, 2, 3), draw(5)), (ints(1, 1, 1), draw(5) - 9), (ints(4, 0, 4), torch.zeros(5)))
def repetition_penalty(generated: Tensor, logits: Tensor, penalty: float = 1.5) -> Tensor:
    logits = logits.clone()
    for token in generated:
        if logits[token] > 0:
            logits[token] = logits[token] / penalty
        else:
            logits[token] = logits[token] * penalty
    return logits


@program(draw(5), draw(5) * 20, torch.zeros(5))
def temperature_by_entropy(logits: Tensor) -> tuple[Tensor, float]:
    temperature = 1.0
    for _ in range(6):
        p = torch.softmax(logits / temperature, dim=0)
        entropy = -(p * torch.log(p + 1e-9)).sum()
        if entropy < 0.8:
            temperature *= 1.3
        elif entropy > 1.2:
            temperature *= 0.7
        else:
            break
    return torch.softmax(logits / temperature, dim=0), temperature


@program(
    (draw(4), ints(1, 2)),
    (draw(4) - 5, ints(1, 1)),
    (draw(4) + 5, ints(3, 0)),
    (torch.full((4,), float("-inf")), ints(0, 0)),
)
def banned_bigrams(logits: Tensor, last: Tensor) -> Tensor:
    banned = {1: [0, 2], 2: [3]}
    for token, words in banned.items():
        if last[-1] == token:
            for word in words:
                logits[word] = float("-inf")
    if torch.isinf(logits).all():
        logits = torch.zeros_like(logits)
    return logits
