"""Word problems small enough that a model of 135M parameters sometimes gets them right.

One or two steps with small numbers, after worked examples of the same kind. Without them, or with
larger numbers, SmolLM2-135M gets next to none right at temperature 1.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry")
THINGS = ("apples", "books", "cards", "coins", "marbles", "pencils", "shells", "stamps")
LEAST, MOST = 2, 6  #: numbers in a problem
SHOWN = 5  #: worked examples before a problem


@dataclass(frozen=True)
class Problem:
    """One question.

    Attributes:
        prompt: worked examples and the question; the model goes on with an answer of one line.
        gold: its answer, or a solution that ends with it.
    """

    prompt: str
    gold: str


@dataclass(frozen=True)
class Worked:
    """A question with its solution, which ends with the answer."""

    question: str
    steps: str
    answer: int

    def __str__(self) -> str:
        return f"{asked(self.question)} {self.steps} The answer is {self.answer}.\n\n"


Template = Callable[[str, str, int, int, int], Worked]


def more(name: str, things: str, a: int, b: int, c: int) -> Worked:
    """a + b."""
    return Worked(
        f"{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
        f"{name} has {a} {things} and gets {b} more {things}. "
        f"So {name} has {a} + {b} = {a + b} {things}.",
        a + b,
    )


def fewer(name: str, things: str, a: int, b: int, c: int) -> Worked:
    """a + b − b."""
    whole = a + b
    return Worked(
        f"{name} has {whole} {things} and loses {b}. How many {things} does {name} have left?",
        f"{name} has {whole} {things} and loses {b} {things}. "
        f"So {name} has {whole} - {b} = {a} {things} left.",
        a,
    )


def bags(name: str, things: str, a: int, b: int, c: int) -> Worked:
    """a · b."""
    return Worked(
        f"{name} buys {a} bags with {b} {things} in each. How many {things} does {name} buy?",
        f"{name} buys {a} bags, and each bag has {b} {things}. "
        f"So {name} buys {a} * {b} = {a * b} {things}.",
        a * b,
    )


def more_then_fewer(name: str, things: str, a: int, b: int, c: int) -> Worked:
    """a + b − c."""
    given = min(c, a + b - 1)
    return Worked(
        f"{name} has {a} {things}, gets {b} more and loses {given}. How many {things} does {name} "
        "have left?",
        f"First {name} has {a} + {b} = {a + b} {things}. "
        f"Then {name} has {a + b} - {given} = {a + b - given} {things} left.",
        a + b - given,
    )


def three(name: str, things: str, a: int, b: int, c: int) -> Worked:
    """a + b + c."""
    return Worked(
        f"{name} has {a} {things} at home, {b} at school and {c} in a bag. How many {things} does "
        f"{name} have?",
        f"At home and at school {name} has {a} + {b} = {a + b} {things}. "
        f"With the bag {name} has {a + b} + {c} = {a + b + c} {things}.",
        a + b + c,
    )


def bags_and_more(name: str, things: str, a: int, b: int, c: int) -> Worked:
    """a · b + c."""
    return Worked(
        f"{name} buys {a} bags with {b} {things} in each and finds {c} more. How many {things} "
        f"does {name} have?",
        f"In the bags {name} has {a} * {b} = {a * b} {things}. "
        f"Then {name} has {a * b} + {c} = {a * b + c} {things}.",
        a * b + c,
    )


TEMPLATES: tuple[Template, ...] = (more, fewer, bags, more_then_fewer, three, bags_and_more)


def asked(question: str) -> str:
    """The question as a prompt has it."""
    return f"Question: {question}\nAnswer:"


def draw(template: Template, rng: random.Random) -> Worked:
    """One problem of a kind."""
    numbers = [rng.randint(LEAST, MOST) for _ in range(3)]
    return template(rng.choice(NAMES), rng.choice(THINGS), *numbers)


def make_problems(count: int, seed: int = 0) -> list[Problem]:
    """So many different problems, the kinds in turn; none of them is among its examples."""
    rng = random.Random(seed)
    shown = [[draw(template, rng) for _ in range(SHOWN)] for template in TEMPLATES]
    taken = {worked.question for examples in shown for worked in examples}
    problems: list[Problem] = []
    while len(problems) < count:
        kind = len(problems) % len(TEMPLATES)
        worked = draw(TEMPLATES[kind], rng)
        if worked.question not in taken:
            taken.add(worked.question)
            before = "".join(map(str, shown[kind]))
            problems.append(Problem(before + asked(worked.question), str(worked.answer)))
    return problems


def read_problems(file: Path, count: int, seed: int = 0) -> list[Problem]:
    """The first problems of a JSONL file with ``question`` and ``answer``, such as GSM8K's.

    One example of each kind of our own problems stands before each.
    """
    rng = random.Random(seed)
    before = "".join(str(draw(template, rng)) for template in TEMPLATES)
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [Problem(before + asked(row["question"]), row["answer"]) for row in rows]
