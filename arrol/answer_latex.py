r"""One spelling for an answer: LaTeX and plain notation brought to the same LaTeX.

Only spelling changes here, never a value: ``\dfrac12`` becomes ``\frac{1}{2}``, ``sqrt(2)`` becomes
``\sqrt{2}``, ``pi`` becomes ``\pi``; spacing, currency and degree signs go.
"""

from __future__ import annotations

import re

from arrol.answer_text import closing_braces

_SIGNS = {
    "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "÷": "/", "π": "\\pi ", "√": "\\sqrt ",
    "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "±": "\\pm ",
    "∪": "\\cup ", "∈": "\\in ", "°": "^\\circ ", "²": "^{2}", "³": "^{3}", "½": "\\frac{1}{2}",
    "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ",
    "∅": "\\emptyset ", "€": "", "£": "", "¥": "", "₹": "", "\u00a0": " ", "％": "%", "，": ",",
}  # fmt: skip
_COMMANDS = [
    (r"\\(?:left|right)(?![a-zA-Z])\.?|\\(?:big|Big|bigg|Bigg)[lr]?(?![a-zA-Z])", ""),
    (r"\\(?:displaystyle|textstyle|limits|phantom\{[^{}]*\})", ""),
    (r"\{,\}|,\\!", ","),
    (r"(?<!\\)\\!", ""),
    (r"(?<!\\)\\[,;: ]|~|\\(?:qquad|quad|thinspace)(?![a-zA-Z])", " "),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\\(?:leq|leqslant)(?![a-zA-Z])|<=|≦", r"\\le "),
    (r"\\(?:geq|geqslant)(?![a-zA-Z])|>=|≧", r"\\ge "),
    (r"\\neq(?![a-zA-Z])|!=", r"\\ne "),
    (r"\\(?:lt)(?![a-zA-Z])", "<"),
    (r"\\(?:gt)(?![a-zA-Z])", ">"),
    (r"\\(?:varnothing|emptyset)", r"\\emptyset "),
    (r"\\lbrace(?![a-zA-Z])", r"\\{"),
    (r"\\rbrace(?![a-zA-Z])", r"\\}"),
    (r"\\[lr]vert(?![a-zA-Z])|\\vert(?![a-zA-Z])|\\mid(?![a-zA-Z])", "|"),
    (r"\\div(?![a-zA-Z])", "/"),
    (r"\\?\$|\\(?:pounds|euro)(?![a-zA-Z])", ""),
    (r"\\%|\\?\s*(?<![a-zA-Z])(?:percent|pct)(?![a-zA-Z])", "%"),
    (r"\\text\s*\{\s*(?:%|percent)\s*\}", "%"),
    # The sine of 30 degrees is not that of 30; elsewhere degrees are a unit.
    (r"(?<![A-Za-z])\\?(sin|cos|tan|cot|sec|csc)((?:\s*\^\s*\{?\d\}?)?)\s*\(?\s*(\d[\d.]*)\s*\^\s*\{?\s*\\circ\s*\}?\)?",
     r"\\\1\2{\\frac{\3\\pi}{180}}"),
    (r"\\langle(?![a-zA-Z])", "("),
    (r"\\rangle(?![a-zA-Z])", ")"),
    (r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])", ""),
    (r"\\(?:text(?:bf|it|rm|normal|sf)|mbox|hbox)\s*\{", r"\\text{"),
    (r"\\mathrm\s*\{(?=[^{}]{2,}\})", r"\\text{"),
    (r"\\(?:mathrm|mathit|rm)\s*\{([^{}])\}", r"\1"),
    (r"\\text\s*\{\s*\}", ""),
    (r"\*\*", "^"),
]  # fmt: skip
_PLAIN = [
    (r"(?<![\\A-Za-z])(pi|alpha|beta|gamma|delta|theta|lambda|sigma|phi|omega)(?![A-Za-z])",
     r"\\\1 "),
    (r"(?<![\\A-Za-z])(?:infinity|infty|inf|oo)(?![A-Za-z])", r"\\infty "),
    (r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp)"
     r"(?=[\s(\d^_]|\\|$)", r"\\\1"),
    (r"\^\s*([+-]\s*(?:\d+|[A-Za-z]))", r"^{\1}"),
    (r"\*", r"\\cdot "),
]  # fmt: skip
_COMMANDS_COMPILED = [(re.compile(pattern), into) for pattern, into in _COMMANDS]
_PLAIN_COMPILED = [(re.compile(pattern), into) for pattern, into in _PLAIN]
_TEXT = re.compile(r"(\\text\{[^{}]*\})")
_ROOT = re.compile(r"(?<![A-Za-z])\\?(sqrt|cbrt|abs)\s*(?=\()")
_POWER = re.compile(r"\^\s*(?=\()")
_ROOTS = {"sqrt": ("\\sqrt{", "}"), "cbrt": ("\\sqrt[3]{", "}"), "abs": ("|", "|")}


def tidy(answer: str) -> str:
    """``answer`` in the one spelling that the rest reads."""
    text = answer
    for sign, into in _SIGNS.items():
        text = text.replace(sign, into)
    for pattern, replacement in _COMMANDS_COMPILED:
        text = pattern.sub(replacement, text)
    for opening in ("\\(", "\\)"):
        text = text.replace(opening, "")
    text = re.sub(r"^\\\[|\\\]$", "", text.strip())
    parts = _TEXT.split(text)
    text = "".join(part if n % 2 else _from_plain(part) for n, part in enumerate(parts))
    text = _with_braces(text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".").rstrip()


def _from_plain(text: str) -> str:
    """What is no LaTeX in it, as LaTeX."""
    for pattern, replacement in _PLAIN_COMPILED:
        text = pattern.sub(replacement, text)
    while root := _ROOT.search(text):
        opening, closing = _ROOTS[root.group(1)]
        end = _closing(text, root.end())
        inner = text[root.end() + 1 : end]
        text = f"{text[: root.start()]}{opening}{inner}{closing}{text[end + 1 :]}"
    while power := _POWER.search(text):
        end = _closing(text, power.end())
        text = f"{text[: power.start()]}^{{{text[power.end() + 1 : end]}}}{text[end + 1 :]}"
    return text


def _closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at ``start``; the end where none does."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def _with_braces(text: str) -> str:
    r"""Give the arguments of ``\frac`` and ``\sqrt`` the braces that TeX lets one leave out."""
    for command, arguments in (("\\frac", 2), ("\\sqrt", 1), ("\\binom", 2)):
        place = text.rfind(command)
        while place >= 0:
            text = _brace_arguments(text, place + len(command), arguments)
            place = text.rfind(command, 0, place) if place else -1
    return text


def _brace_arguments(text: str, place: int, arguments: int) -> str:
    head, rest = text[:place], text[place:].lstrip()
    if head.endswith("\\sqrt") and rest.startswith("["):
        end = rest.find("]") + 1
        head, rest = head + rest[:end], rest[end:].lstrip()
    for _ in range(arguments):
        if rest.startswith("{"):
            end = closing_braces(rest).get(0, len(rest) - 1) + 1
            head, rest = head + rest[:end], rest[end:].lstrip()
        elif token := re.match(r"\\[a-zA-Z]+|[^\\\s]", rest):
            head, rest = f"{head}{{{token.group()}}}", rest[token.end() :].lstrip()
    return head + rest
