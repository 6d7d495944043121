"""Greedy answers of two servers, held against each other token by token.

A verify or decode rounds in other places than SGLang's own class, so that two tokens that are
almost as likely may change places. Behind such a tie the second server is asked again from
where the first one stands.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sglang.server import Server

TOP = 8
TIE = 0.05
"""Natural logarithms between two tokens that the roundings of the two servers may exchange."""
AFTER_A_TIE = 16
_MOST_PARTS = 12

Parts = list[tuple[int, "Answer"]]
"""(place of its first token, what was said from there)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy tokens, and the logarithms of the likeliest at each place."""

    tokens: list[int]
    likely: list[dict[int, float]]

    def gap(self, at: int, other: int) -> float:
        """How much likelier the token taken was than ``other``."""
        return self.likely[at][self.tokens[at]] - self.likely[at].get(other, -1e9)


def ask(server: Server, prompt: list[int], tokens: int) -> Answer:
    """Greedy decoding after a prompt of ids."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt, "return_logprob": True, "top_logprobs_num": TOP}
    status, answer = server.post("/generate", {**body, "sampling_params": sampling})
    assert status == 200, answer
    likely = answer["meta_info"]["output_top_logprobs"]
    return Answer(answer["output_ids"], [{t[1]: t[0] for t in place} for place in likely])


def follow(server: Server, prompt: list[int], plain: Answer, first: int | None = None) -> Parts:
    """Ask again from behind every token that differs from ``plain``, a little at a time.

    ``first`` tokens are asked for before that, all of them unless given: what comes behind a
    tie is of no use, and every step takes its time.
    """
    tokens = len(plain.tokens)
    parts = [(0, ask(server, prompt, first or tokens))]
    while True:
        begin, part = parts[-1]
        pairs = zip(part.tokens, plain.tokens[begin:], strict=False)
        done = begin + next((i + 1 for i, (a, b) in enumerate(pairs) if a != b), len(part.tokens))
        if done >= tokens:
            return parts
        assert len(parts) < _MOST_PARTS, f"{prompt}: {[begin for begin, _ in parts]}"
        more = min(AFTER_A_TIE, tokens - done)
        parts.append((done, ask(server, [*prompt, *plain.tokens[:done]], more)))


def ties(whole: Answer, parts: Parts) -> list[tuple[int, float, float]]:
    """(place, gap there, gap here) of each place where the two took different tokens."""
    found = []
    for begin, part in parts:
        for i, token in enumerate(part.tokens):
            expected = whole.tokens[begin + i]
            if token != expected:
                found.append((begin + i, whole.gap(begin + i, token), part.gap(i, expected)))
                break
    return found


def first_gap(whole: Answer, tokens: list[int]) -> float:
    """How much likelier ``whole`` was to take its own token where the two part; 0: nowhere."""
    pairs = enumerate(zip(whole.tokens, tokens, strict=True))
    return next((whole.gap(i, other) for i, (token, other) in pairs if token != other), 0.0)


def apart(whole: Answer, parts: Parts) -> list[float]:
    """How much the logarithm of each token of ``whole`` differs, up to the next tie."""
    return [
        abs(whole.likely[begin + i][token] - part.likely[i].get(token, -1e9))
        for begin, part in parts
        for i, token in enumerate(whole.tokens[begin : begin + len(part.tokens)])
        if part.tokens[:i] == whole.tokens[begin : begin + i]
    ]
