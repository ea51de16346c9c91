r"""Where a response's answer is, as text.

The rules, the first that finds something counts:

1. The last ``\boxed{...}`` or ``\fbox{...}`` whose braces close and that holds something.
2. The rest of the last line that has ``####`` (GSM8K).
3. The rest of the line after the last ``answer is``, ``answer:`` or ``A:``, this at a line's start.
4. A text of one line without any of these is an answer as a whole.

Anything else has no answer: a number somewhere in the reasoning is none. math-verify falls back to
the last number or formula that it finds; then a response cut off at the token limit may be right by
chance. Nor is anything of more than ``LONGEST`` characters an answer.

All of it takes time linear in the text, so it needs no time limit.
"""

from __future__ import annotations

import re

LONGEST = 2_000  # characters of an answer

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=[{\d-])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARK = re.compile(
    r"\banswers?(?: (?:to|for|of)\b[^.:\n]{0,80}?)?\s+(?:is|are)\b(?: (?:therefore|thus|then))?"
    r"|\banswers?[\s*]*:|\bfinal answer[ \t*]*$"
    r"|^[ \t]*(?:\*\*)?(?-i:A)(?:\*\*)?:",
    re.IGNORECASE | re.MULTILINE,
)
_REST = re.compile(r",?\s(?:because|since|which)\b|[.,]?\sI hope\b|[.!]\s+[A-Z][a-z]")
_DELIMITERS = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`")]


def extract_answer(text: str) -> str | None:
    r"""The answer that ``text`` gives, as it stands there, or None if it gives none.

    The module says where it is looked for. Of the answer itself only what surrounds it is removed:
    the box, ``$``, ``**``, the end of the sentence.

    >>> extract_answer(r"First \boxed{3}, no, \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> extract_answer("She has 9 eggs.\n#### 18")
    '18'
    """
    boxed = _last_box(text)
    if boxed is not None:
        return boxed
    place = text.rfind("####")
    if place >= 0:
        return _bare(_line_from(text, place + 4))
    marks = list(_MARK.finditer(text))
    if marks:
        return _bare(_line_from(text, marks[-1].end()))
    return _bare(text) if "\n" not in text.strip() else None


def closing_braces(text: str, start: int = 0) -> dict[int, int]:
    """Where each opening brace from ``start`` on is closed; those that never are, are left out."""
    closed: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text, start):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closed[opened.pop()] = match.start()
    return closed


def _last_box(text: str) -> str | None:
    """Content of the last box that is closed and not empty."""
    boxes = list(_BOX.finditer(text))
    closed = closing_braces(text, boxes[0].start()) if boxes else {}
    for box in reversed(boxes):
        start = box.end()
        if text[start] != "{":  # \boxed 18
            word = re.compile(r"[^\s${}\\]+").match(text, start)
            content = word.group().rstrip(".,") if word else ""
        else:
            content = text[start + 1 : closed.get(start, start)]
        content = _undelimited(content.strip())
        if content:
            return content if len(content) <= LONGEST else None
    return None


def _line_from(text: str, place: int) -> str:
    """The rest of the line; the next one where nothing is left of it, as before a formula."""
    start = place
    while start < len(text) and text[start] in " \t:*\n":
        start += 1
    for opening, closing in (("\\[", "\\]"), ("$$", "$$")):
        if text.startswith(opening, start):
            end = text.find(closing, start + 2)
            return text[start : end + 2] if end >= 0 else ""
    end = text.find("\n", start)
    return text[start : end if end >= 0 else len(text)].rstrip(" *")


def _bare(text: str) -> str | None:
    """``text`` without what surrounds an answer in a sentence; None if nothing is left."""
    text = _undelimited(text.strip())
    if len(text) > LONGEST:
        return None
    text = _without_rest_of_sentence(text)
    return _undelimited(text) or None


def _without_rest_of_sentence(text: str) -> str:
    """Cut at a full stop that ends a sentence, and at what gives a reason."""
    found = _REST.search(text)
    text = text[: found.start()] if found else text
    return text.rstrip().rstrip(".,;").rstrip()


def _undelimited(text: str) -> str:
    """``text`` without the signs for maths and emphasis around the whole of it."""
    for opening, closing in _DELIMITERS:
        inner = text[len(opening) : len(text) - len(closing)]
        whole = len(text) > len(opening) + len(closing) and text.endswith(closing)
        if whole and text.startswith(opening) and opening not in inner and closing not in inner:
            return _undelimited(inner.strip())
    return text
