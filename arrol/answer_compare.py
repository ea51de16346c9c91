"""Whether two answers of any form are the same answer."""

from __future__ import annotations

from itertools import pairwise

from arrol.answer_forms import (
    Form,
    Formula,
    Group,
    Matrix,
    Relation,
    Union,
    Words,
    is_name,
)
from arrol.answer_numbers import Number

_FLIPPED = {">": "<", ">=": "<="}


def same_form(one: Form, other: Form) -> bool:
    """Whether the two are the same answer. A formula that can't be parsed equals itself only.

    Raises:
        ArrolError: math-verify is missing and needed.
    """
    one, other = _single(one), _single(other)
    if one == other:
        return True
    if isinstance(one, Number) and isinstance(other, Number):
        return one.same(other)
    if isinstance(one, Relation) or isinstance(other, Relation):
        return _with_relation(one, other)
    if isinstance(one, Words) or isinstance(other, Words):
        return _with_words(one, other)
    if isinstance(one, Group) and isinstance(other, Group):
        return _same_group(one, other)
    if isinstance(one, Union) and isinstance(other, Union):
        return _same_unordered(one.items, other.items)
    if {type(one), type(other)} == {Group, Union}:  # x < 1 or x > 3
        return _same_unordered(_intervals(one), _intervals(other))
    if isinstance(one, Matrix) and isinstance(other, Matrix):
        return len(one.rows) == len(other.rows) and all(
            _same_ordered(a, b) for a, b in zip(one.rows, other.rows, strict=True)
        )
    if isinstance(one, (Group, Union, Matrix)) or isinstance(other, (Group, Union, Matrix)):
        return False
    return _same_value(one, other)


def _same_value(one: Number | Formula, other: Number | Formula) -> bool:
    from arrol.answer_maths import same_formula  # math-verify takes a second to import

    readings = [(latex_of(one), latex_of(other))]
    for a, b, swap in ((one, other, False), (other, one, True)):
        if isinstance(a, Number) and a.percent:
            pair = (_fraction(a, 100), latex_of(b))
            readings.append((pair[1], pair[0]) if swap else pair)
    return any(same_formula(a, b) for a, b in readings)


def is_readable(form: Form) -> bool:
    """Whether every formula in it can be parsed; a mere name need not be."""
    if isinstance(form, Formula):
        from arrol.answer_maths import is_formula

        return is_name(form) or is_formula(form.latex)
    parts: tuple[Form, ...] = ()
    if isinstance(form, (Group, Union)):
        parts = form.items
    elif isinstance(form, Relation):
        parts = form.sides
    elif isinstance(form, Matrix):
        parts = tuple(entry for row in form.rows for entry in row)
    return all(is_readable(part) for part in parts)


def latex_of(form: Number | Formula) -> str:
    """LaTeX of a number or a formula."""
    return form.latex if isinstance(form, Formula) else _fraction(form, 1)


def _fraction(number: Number, parts: int) -> str:
    value = number.value / parts
    sign = "-" if value < 0 else ""
    top = str(abs(value.numerator))
    return sign + (top if value.denominator == 1 else rf"\frac{{{top}}}{{{value.denominator}}}")


def _single(form: Form) -> Form:
    """A set or list of one is that one."""
    while isinstance(form, Group) and form.opening in ("", "{") and len(form.items) == 1:
        form = form.items[0]
    return form


def _with_words(one: Form, other: Form) -> bool:
    texts = [form.text if isinstance(form, Words) else None for form in (one, other)]
    for place, form in enumerate((one, other)):
        if isinstance(form, Formula):
            texts[place] = form.latex.casefold()
    return texts[0] is not None and texts[0] == texts[1]


def _same_group(one: Group, other: Group) -> bool:
    brackets = {one.opening + one.closing, other.opening + other.closing}
    if brackets <= {"", "{}"}:
        return _same_unordered(one.items, other.items)
    # A bare list may stand for a tuple, in its order.
    same_kind = len(brackets) == 1 or brackets == {"", "()"}
    return same_kind and _same_ordered(one.items, other.items)


def _same_ordered(ones: tuple[Form, ...], others: tuple[Form, ...]) -> bool:
    return len(ones) == len(others) and all(
        same_form(a, b) for a, b in zip(ones, others, strict=True)
    )


def _same_unordered(ones: tuple[Form, ...], others: tuple[Form, ...]) -> bool:
    if len(ones) != len(others):
        return False
    left = list(others)
    for one in ones:
        found = next((place for place, item in enumerate(left) if same_form(one, item)), None)
        if found is None:
            return False
        left.pop(found)
    return True


def _with_relation(one: Form, other: Form) -> bool:
    if isinstance(one, Relation) and isinstance(other, Relation):
        return _same_relation(one, other)
    relation, plain = (one, other) if isinstance(one, Relation) else (other, one)
    assert isinstance(relation, Relation)
    if set(relation.operators) == {"="}:
        values = relation.sides[is_name(relation.sides[0]) :]
        return all(same_form(value, plain) for value in values)
    interval = as_interval(relation)
    return interval is not None and same_form(interval, plain)


def _intervals(form: Form) -> tuple[Form, ...]:
    items = form.items if isinstance(form, (Group, Union)) else (form,)
    return tuple(
        (as_interval(item) or item) if isinstance(item, Relation) else item for item in items
    )


def as_interval(relation: Relation) -> Form | None:
    r"""``x < 2`` as ``(-\infty, 2)``, ``1 <= x < 2`` as ``[1, 2)``; None for other relations."""
    relation = _ascending(relation)
    sides, signs = relation.sides, relation.operators
    if not set(signs) <= {"<", "<="}:
        return None
    low: Form = Formula("-\\infty")
    high: Form = Formula("\\infty")
    open_low = open_high = True
    if any(isinstance(side, Formula) and "|" in side.latex for side in sides):
        return None
    if len(sides) == 3 and is_name(sides[1]):
        low, high = sides[0], sides[2]
        open_low, open_high = (sign == "<" for sign in signs)
    elif len(sides) == 2 and is_name(sides[0]):
        high, open_high = sides[1], signs[0] == "<"
    elif len(sides) == 2 and is_name(sides[1]):
        low, open_low = sides[0], signs[0] == "<"
    else:
        return None
    return Group("(" if open_low else "[", ")" if open_high else "]", (low, high))


def _ascending(relation: Relation) -> Relation:
    """The relation written with < and <= where it has > and >= throughout."""
    if not set(relation.operators) <= set(_FLIPPED):
        return relation
    signs = tuple(_FLIPPED[sign] for sign in reversed(relation.operators))
    return Relation(tuple(reversed(relation.sides)), signs)


def _same_relation(one: Relation, other: Relation) -> bool:
    one, other = _ascending(_short(one)), _ascending(_short(other))
    first, second = _pairs(one), _pairs(other)
    return len(first) == len(second) and all(
        a[1] == b[1] and _same_pair(a, b) for a, b in zip(first, second, strict=True)
    )


def _short(relation: Relation) -> Relation:
    """Of ``x = 1 + 4 = 5`` what it comes down to: ``x = 5``."""
    if set(relation.operators) == {"="} and len(relation.sides) > 2 and is_name(relation.sides[0]):
        return Relation((relation.sides[0], relation.sides[-1]), ("=",))
    return relation


def _pairs(relation: Relation) -> list[tuple[Form, str, Form]]:
    return [
        (left, sign, right)
        for (left, right), sign in zip(pairwise(relation.sides), relation.operators, strict=True)
    ]


def _same_pair(one: tuple[Form, str, Form], other: tuple[Form, str, Form]) -> bool:
    if same_form(one[0], other[0]) and same_form(one[2], other[2]):
        return True
    sides = (one[0], one[2], other[0], other[2])
    formulas = [latex_of(side) for side in sides if isinstance(side, (Number, Formula))]
    if len(formulas) < len(sides):
        return False
    from arrol.answer_maths import same_zeros

    return same_zeros(formulas[:2], formulas[2:], signed=one[1] in ("<", "<="))
