"""Tensors with a JSON-like note as safetensors bytes: how a head and its trainer are kept.

Nothing here reads or writes a pickle, so a file from elsewhere can do no more than be refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from arrol.errors import ArrolError


def pack(tensors: Mapping[str, torch.Tensor], note: Mapping[str, Any]) -> bytes:
    """Safetensors bytes of ``tensors``, with ``note`` as JSON in their metadata.

    The same tensors and note give the same bytes.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(whole, {"note": json.dumps(note, allow_nan=False)})


def unpack(data: bytes, what: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the note that :func:`pack` put into ``data``.

    Raises:
        ArrolError: ``data`` is not what :func:`pack` writes: a pickle, cut off, without a note.
    """
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        note = json.loads(header["__metadata__"]["note"])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, SafetensorError) else "it has no note"
        raise ArrolError(
            f"{what} can't be read ({reason}); allowed are safetensors that arrol wrote."
        ) from None
    if not isinstance(note, dict):
        raise ArrolError(f"{what} has the note {note!r}; allowed is an object.")
    return tensors, note


def check_tensor(
    what: str, tensor: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """``tensor`` itself, if it has that shape and type and is finite.

    Raises:
        ArrolError: it is missing or differs.
    """
    if tensor is None:
        raise ArrolError(f"{what} is missing; allowed is a tensor of shape {list(shape)}.")
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ArrolError(
            f"{what} is {tensor.dtype} of shape {list(tensor.shape)}; "
            f"allowed is {dtype} of shape {list(shape)}."
        )
    if not bool(torch.isfinite(tensor).all()):
        raise ArrolError(f"{what} holds a NaN or an infinite value; allowed are finite values.")
    return tensor


def read_file(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        ArrolError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArrolError(f"{path} can't be read: {error.strerror or error}.") from None
