"""Asks the problems one after the other, and adds up what came."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from megatrace.bench.client import Answer, Server
from megatrace.bench.gsm8k import STOP, Problem, number_in, prompt
from megatrace.errors import ServerError, UsageError


@dataclass(frozen=True, slots=True)
class Plan:
    """How to ask. ``shots`` problems of the data are shown solved, and not asked."""

    shots: int = 5
    limit: int | None = None
    max_tokens: int = 512
    temperature: float = 0.0
    warmups: int = 1

    def split(self, problems: Sequence[Problem]) -> tuple[list[Problem], list[Problem]]:
        """(shots, problems to ask); raises UsageError where none is left to ask."""
        shots, asked = list(problems[: self.shots]), list(problems[self.shots :])
        if not asked:
            raise UsageError(
                f"{len(problems)} problems and {self.shots} shots: none is left to ask",
                hint="lower --shots, or give more data",
            )
        return shots, asked[: self.limit]

    @property
    def sampling(self) -> dict[str, object]:
        """SGLang's ``sampling_params``."""
        return {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stop": [STOP],
        }


@dataclass(slots=True)
class Result:
    """What was seen; every figure is of one request at a time."""

    model: str = ""
    answers: list[Answer] = field(default_factory=list)
    correct: int = 0
    without_number: int = 0

    def add(self, problem: Problem, answer: Answer) -> None:
        """Take the ``answer`` to ``problem``."""
        self.answers.append(answer)
        said = number_in(answer.text)
        self.correct += said == problem.number
        self.without_number += said is None

    @property
    def accuracy(self) -> float:
        """Share of the answers that were right."""
        return self.correct / len(self.answers)

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def accept_length(self) -> float | None:
        """Tokens a verify gave, its own included, as SGLang counts; None: nothing was verified."""
        verifies = sum(answer.verifies or 0 for answer in self.answers)
        return self.tokens / verifies if verifies else None

    @property
    def step_ms(self) -> float | None:
        """Median time of a step after the first token; None where no answer had two."""
        times = [dur_s for answer in self.answers for dur_s in answer.step_times_s]
        return 1e3 * statistics.median(times) if times else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of a step over the median step; None where that is."""
        step_ms = self.step_ms
        return 1e3 * (self.accept_length or 1.0) / step_ms if step_ms else None

    @property
    def wall_tokens_per_s(self) -> float | None:
        """Tokens after the first ones over the time they took, whatever came between."""
        events = [event for answer in self.answers for event in answer.events]
        dur_s = sum(event.dur_s for event in events)
        return sum(event.tokens for event in events) / dur_s if dur_s else None

    @property
    def first_ms(self) -> float:
        """Median time to the first token."""
        return 1e3 * statistics.median(answer.first_s for answer in self.answers)

    @property
    def steps_an_event(self) -> float:
        """Steps that the server streamed at a time: above 1 the median step is of several."""
        return statistics.fmean(answer.steps_an_event for answer in self.answers)

    def facts(self) -> dict[str, object]:
        """The figures by name, as JSON has them."""
        names = (
            *("model", "correct", "without_number", "accuracy", "tokens", "accept_length"),
            *("step_ms", "tokens_per_s", "wall_tokens_per_s", "first_ms", "steps_an_event"),
        )
        return {"asked": len(self.answers), **{name: getattr(self, name) for name in names}}


def run(
    server: Server,
    problems: Sequence[Problem],
    plan: Plan,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Ask one problem after the other; ``progress(done, total)`` hears of each.

    Raises ServerError with the problem's number where the server fails, UsageError where the
    plan leaves nothing to ask.
    """
    shots, asked = plan.split(problems)
    result = Result(model=server.model())
    for i in range(plan.warmups):
        server.generate(prompt(shots, asked[i % len(asked)]), plan.sampling)
    for i, problem in enumerate(asked):
        progress(i, len(asked))
        try:
            answer = server.generate(prompt(shots, problem), plan.sampling)
        except ServerError as error:
            raise ServerError(
                f"problem {i + 1} of {len(asked)}: {error}", hint=error.hint
            ) from None
        result.add(problem, answer)
    return result
