r"""What kind of thing an answer is: a number, words, a set, an interval, an equation, a formula.

An answer is taken apart here, by its own text, down to formulas that hold no list and no relation.
math-verify takes a list, an equation or a unit without ``$`` around it for the first number that it
finds in it (``1331 and 1728`` for 1331), so it is given single formulas only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arrol.answer_latex import tidy
from arrol.answer_numbers import Number, read_number, without_unit


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, lower case: a name, yes, no solution."""

    text: str


@dataclass(frozen=True, slots=True)
class Formula:
    """LaTeX of one formula: no list, no relation, no unit."""

    latex: str


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers; ``opening`` and ``closing`` are their brackets, both empty for a bare list.

    A bare list and a set have no order; ``(a, b)`` and ``[a, b)`` have: points and intervals.
    """

    opening: str
    closing: str
    items: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Union:
    """Intervals or sets joined by ∪."""

    items: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """``sides[0] operators[0] sides[1] ...``; operators are ``= < > <= >= !=``."""

    sides: tuple[Form, ...]
    operators: tuple[str, ...]


Form = Number | Words | Formula | Group | Union | Matrix | Relation

_OPENING = {"(": ")", "[": "]", "\\{": "\\}"}
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_AND = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\text\{\s*,?\s*(?:and|or)\s*\}|;")
_OPERATORS = {
    "=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\approx": "~",
    "\\equiv": "=",
}  # fmt: skip
_MATRIX = re.compile(r"^\\begin\{([bpvB]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}$", re.DOTALL)
_WORDS = re.compile(r"[A-Za-z][A-Za-z .,'-]*")
_SHORT_WORDS = {"yes", "no", "odd", "all", "none", "am", "pm", "one", "two", "six", "ten"}
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_MINUS_PLUS = re.compile(r"\\mp(?![a-zA-Z])")
_IN_SPACE = re.compile(r"\\in(?![a-zA-Z]).*$")
_IN = re.compile(r"^\\?[A-Za-z]+\s*\\in(?![a-zA-Z])\s*(?=\S)")


def read(answer: str) -> Form:
    """The form of an answer's text."""
    return _read(tidy(answer))


def read_as_list(answer: str) -> Form | None:
    """``1,234`` read as the list of 1 and 234, where it can be; None where it can't."""
    parts = _split(tidy(answer), {","})
    return Group("", "", tuple(_read(part) for part in parts)) if len(parts) > 1 else None


def _read(text: str) -> Form:
    text = _IN.sub("", text)
    if text == "\\mathbb{R}":
        text = r"(-\infty, \infty)"
    number = read_number(text)
    if number is not None:
        return number
    words = _words(text)
    if words is not None:
        return words
    for reader in (_matrix, _list, _relation, _union, _bracketed, _either_sign):
        form = reader(text)
        if form is not None:
            return form
    bare = without_unit(text)
    return Formula(text) if bare == text else _read(bare)


def _words(text: str) -> Form | None:
    inner = re.fullmatch(r"\(?\\text\{([^{}]*)\}\)?", text)
    if inner:
        content = inner.group(1).strip()
        return read_number(without_unit(content)) or Words(_plain(content))
    is_words = _WORDS.fullmatch(text) and any(
        len(word) >= 4 or word.lower() in _SHORT_WORDS for word in re.findall("[A-Za-z]+", text)
    )
    return Words(_plain(text)) if is_words and not _AND.search(text) else None


def _plain(text: str) -> str:
    text = re.sub(r"\s+", " ", text.casefold()).strip().rstrip(".")
    return text[1:-1] if re.fullmatch(r"\([^()]*\)", text) else text


def _matrix(text: str) -> Form | None:
    found = _MATRIX.match(text)
    if not found or "\\begin" in found.group(2):
        return None
    rows = [row for row in re.split(r"\\\\", found.group(2)) if row.strip()]
    return Matrix(tuple(tuple(_read(cell.strip()) for cell in row.split("&")) for row in rows))


def _list(text: str) -> Form | None:
    clauses = [part.strip().rstrip(",").strip() for part in _split_at(text, _AND)]
    clauses = [clause for clause in clauses if clause]
    items: list[str] = []
    for clause in clauses:
        items += [clause] if read_number(clause) else _split(clause, {","})
    return Group("", "", _flat(items)) if len(items) > 1 else None


def _flat(items: list[str]) -> tuple[Form, ...]:
    r"""Forms of a list's items, where ``1 \pm \sqrt{5}`` is two of them."""
    forms: list[Form] = []
    for form in map(_read, items):
        forms += form.items if isinstance(form, Group) and not form.opening else (form,)
    return tuple(forms)


def _relation(text: str) -> Form | None:
    sides = _split(text, set(_OPERATORS), keep_empty=True)
    if len(sides) < 2 or not all(sides):
        return None
    operators = [_OPERATORS[token] for token in _top_level(text, set(_OPERATORS))]
    if "~" in operators:
        # Of a = b ≈ c the exact part counts; c itself where only the name of a thing stands left.
        place = operators.index("~")
        if place == 0 and is_name(Formula(sides[0])):
            operators = ["="]
            sides = sides[:2]
        else:
            sides, operators = sides[: place + 1], operators[:place]
    if not operators:
        return _read(sides[0])
    return Relation(tuple(_read(side) for side in sides), tuple(operators))


def _union(text: str) -> Form | None:
    parts = _split(text, {"\\cup"})
    return Union(tuple(_read(part) for part in parts)) if len(parts) > 1 else None


def _bracketed(text: str) -> Form | None:
    opening = next((sign for sign in _OPENING if text.startswith(sign)), None)
    closing = next((sign for sign in _OPENING.values() if text.endswith(sign)), None)
    if opening is None or closing is None:
        return None
    inner = text[len(opening) : len(text) - len(closing)]
    if not _balanced(inner):
        return None
    parts = _split(inner, {","})
    if (opening, closing) == ("\\{", "\\}"):
        if not inner.strip():
            return Formula("\\emptyset")
        condition = _split(inner, {"|", ":"})
        if len(condition) == 2 and is_name(Formula(_IN_SPACE.sub("", condition[0]).strip())):
            return _read(condition[1])  # {x | x > 0}
        return Group("{", "}", _flat(parts))
    if len(parts) > 1:
        return Group(opening, closing, tuple(_read(part) for part in parts))
    return _read(inner.strip()) if _OPENING.get(opening) == closing == ")" and inner else None


def _either_sign(text: str) -> Form | None:
    if not _PLUS_MINUS.search(text):
        return None
    both = (
        _PLUS_MINUS.sub(plus, _MINUS_PLUS.sub(minus, text))
        for plus, minus in (("+", "-"), ("-", "+"))
    )
    return Group("", "", tuple(_read(one.strip().removeprefix("+").strip()) for one in both))


def is_name(form: Form) -> bool:
    r"""It names the thing that is asked for: ``x``, ``f(x)``, ``\angle ABC``, ``a_n``, ``P(A)``."""
    if isinstance(form, Words):
        return True
    if isinstance(form, Group):  # (x, y) = (1, 2)
        return all(is_name(item) for item in form.items)
    if not isinstance(form, Formula):
        return False
    shape = re.sub(r"\\text\{[^{}]*\}|_\{[^{}]*\}|_\w", "", form.latex)
    if not _balanced(shape) or re.search(r"\\(?:frac|sqrt|pi|infty|emptyset)", shape):
        return False
    # Letter by letter: a repeated run of letters would take time exponential in their number.
    return re.fullmatch(r"(?:\\?[A-Za-z]|[\s|'{}])+(?:\([\w\s,'{}\\]*\))?", shape) is not None


def _top_level(text: str, wanted: set[str]) -> list[str]:
    return [token for token, _, _ in _tokens(text) if token in wanted]


def _tokens(text: str) -> list[tuple[str, int, int]]:
    """Tokens outside all brackets, with start and end."""
    found, depth = [], 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in ("{", "(", "[", "\\{", "\\begin"):
            depth += 1
        elif token in ("}", ")", "]", "\\}", "\\end"):
            depth -= 1
        elif depth == 0:
            found.append((token, match.start(), match.end()))
    return found


def _balanced(text: str) -> bool:
    depth = 0
    for match in _TOKEN.finditer(text):
        depth += match.group() in ("{", "(", "[", "\\{")
        depth -= match.group() in ("}", ")", "]", "\\}")
        if depth < 0:
            return False
    return depth == 0


def _split(text: str, separators: set[str], keep_empty: bool = False) -> list[str]:
    """``text`` cut at the separators that stand outside all brackets."""
    parts, start = [], 0
    for token, begin, end in _tokens(text):
        if token in separators:
            parts.append(text[start:begin].strip())
            start = end
    parts.append(text[start:].strip())
    return [part for part in parts if part or keep_empty]


def _split_at(text: str, pattern: re.Pattern[str]) -> list[str]:
    """``text`` cut where ``pattern`` is found outside all brackets."""
    inside = {begin for _, begin, _ in _tokens(text)}
    parts, start = [], 0
    for match in pattern.finditer(text):
        if match.start() in inside:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]
