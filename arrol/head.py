"""The quality head: from the hidden state at the detection length to a quality score.

The head is the one part of the method that needs torch; ``import arrol`` does not import it. The
frontend trains it (:mod:`arrol.head_trainer`) and pushes its bytes to the engines, each of which
scores the hidden state of a rollout's token number L_detect.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arrol.errors import ArrolError, check_integer
from arrol.files import write_atomically
from arrol.head_files import check_tensor, pack, read_file, unpack

HEAD_FORMAT = 1  #: of the bytes and of the JSON beside them
LARGEST_VERSION = 2**53 - 1  #: the largest integer that every JSON reader keeps


class QualityHead(nn.Module):
    """Linear(H, width) → ReLU → Linear(width, 1); the score is the logit's sigmoid.

    The paper gives two layers and not their width; ours is max(16, H/4). Parameters are float32
    whatever the model's type. The hidden state is detached: no gradient reaches the model.

    Attributes:
        hidden_size: H, width of the model's last hidden state.
        width: units of the layer between.
        version: how often it was trained; 0 for an untrained head, with which engines keep all.

    Args:
        hidden_size: H.
        width: None for the default.
        seed: of the initial weights, uniform within ±1/√(inputs) as in torch's own Linear. The
            global random state is neither read nor changed.

    Raises:
        ArrolError: a value is outside its range.
    """

    def __init__(self, hidden_size: int, width: int | None = None, seed: int = 0) -> None:
        super().__init__()
        check_integer("hidden_size", hidden_size, 1)
        width = default_width(hidden_size) if width is None else width
        check_integer("width", width, 1)
        check_integer("seed", seed, 0, 2**63 - 1)
        self.hidden_size = int(hidden_size)
        self.width = int(width)
        self.version = 0
        generator = torch.Generator("cpu").manual_seed(int(seed))
        self.hidden_layer = _linear(self.hidden_size, self.width, generator)
        self.logit_layer = _linear(self.width, 1, generator)

    def forward(self, hidden_NH: Tensor) -> Tensor:
        """Logits, float32[N], of hidden states of any floating type. Autocast has no effect.

        Raises:
            ArrolError: ``hidden_NH`` is not floating or not [N, H].
        """
        rows_NH = self._checked(hidden_NH).detach().float()
        with torch.autocast(rows_NH.device.type, enabled=False):
            units = torch.relu(self.hidden_layer(rows_NH))
            logits_N1: Tensor = self.logit_layer(units)
        return logits_N1.squeeze(-1)

    @torch.no_grad()
    def scores(self, hidden_NH: Tensor) -> Tensor:
        """Quality scores in [0, 1], float64[N], without a gradient.

        A row with a NaN or an infinite value scores NaN, and no other row does.

        Raises:
            ArrolError: as in :meth:`forward`.
        """
        logits_N = self(hidden_NH).double()
        known_N = torch.isfinite(hidden_NH).all(-1) & torch.isfinite(logits_N)
        return torch.where(known_N, torch.sigmoid(logits_N), torch.nan)

    def to_bytes(self) -> bytes:
        """Safetensors bytes with the version in their metadata, to be pushed to an engine.

        Raises:
            ArrolError: a weight is not finite, or the version no integer of at least 0.
        """
        check_integer("version", self.version, 0, LARGEST_VERSION)
        tensors = dict(self.state_dict())
        for name, shape in _shapes(self.hidden_size, self.width).items():
            check_tensor(f"the head's {name}", tensors.get(name), shape, torch.float32)
        return pack(tensors, self._note())

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "the head") -> QualityHead:
        """The head that :meth:`to_bytes` wrote, on the CPU; ``what`` names it in an error.

        Raises:
            ArrolError: the bytes are a pickle, cut off, of another format, of wrong shapes, or
                hold a weight that is not finite.
        """
        tensors, note = unpack(data, what)
        _check_note(what, note)
        shapes = _shapes(note["hidden_size"], note["width"])
        if set(tensors) != set(shapes):
            raise ArrolError(f"{what} has {sorted(tensors)}; allowed is {sorted(shapes)}.")
        for name, shape in shapes.items():
            check_tensor(f"{name} of {what}", tensors[name], shape, torch.float32)
        head = cls(note["hidden_size"], note["width"])
        head.load_state_dict(tensors)
        head.version = note["version"]
        return head

    def save(self, folder: Path | str) -> None:
        """Write ``head.safetensors``, then ``head.json`` beside it, each atomically.

        Raises:
            ArrolError: the folder can't be written to, or as in :meth:`to_bytes`.
        """
        write_atomically(Path(folder) / "head.safetensors", self.to_bytes())
        write_atomically(Path(folder) / "head.json", json.dumps(self._note(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> QualityHead:
        """The head that :meth:`save` wrote.

        The weights carry their own note. A ``head.json`` with a lower version is what a save
        leaves that was killed between its two files: the weights are whole and are taken.

        Raises:
            ArrolError: a file is missing or damaged, or the two do not belong together.
        """
        weights, note_file = Path(folder) / "head.safetensors", Path(folder) / "head.json"
        head = cls.from_bytes(read_file(weights), str(weights))
        try:
            note = json.loads(read_file(note_file))
        except (ValueError, RecursionError) as error:
            if isinstance(error, ArrolError):
                raise
            raise ArrolError(f"{note_file} is no JSON; allowed is what save wrote.") from None
        _check_note(str(note_file), note)
        mine = head._note()
        if note["version"] > head.version or note | {"version": head.version} != mine:
            raise ArrolError(f"{note_file} says {note}; allowed is {mine}, what its weights say.")
        return head

    def _checked(self, hidden_NH: Tensor) -> Tensor:
        if hidden_NH.ndim != 2 or hidden_NH.shape[1] != self.hidden_size:
            raise ArrolError(
                f"hidden states have shape {list(hidden_NH.shape)}; "
                f"allowed is [N, {self.hidden_size}]."
            )
        if not hidden_NH.is_floating_point():
            raise ArrolError(f"hidden states are {hidden_NH.dtype}; allowed is a floating type.")
        return hidden_NH

    def _note(self) -> dict[str, Any]:
        return {
            "format": HEAD_FORMAT,
            "hidden_size": self.hidden_size,
            "width": self.width,
            "version": int(self.version),
        }


def default_width(hidden_size: int) -> int:
    """max(16, H/4): 512 units for a model of hidden size 2,048."""
    return max(16, hidden_size // 4)


def _shapes(hidden_size: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        "hidden_layer.weight": (width, hidden_size),
        "hidden_layer.bias": (width,),
        "logit_layer.weight": (1, width),
        "logit_layer.bias": (1,),
    }


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Torch's Linear, drawn from ``generator``; the type and device stand whatever the defaults."""
    # Through "meta", as its own initial values would come from the global random state.
    layer = nn.Linear(inputs, outputs, device="meta", dtype=torch.float32).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
    return layer


def _check_note(what: str, note: Any) -> None:
    names = {"format", "hidden_size", "width", "version"}
    if not isinstance(note, dict) or set(note) != names:
        raise ArrolError(f"{what} says {note!r}; allowed are values for {sorted(names)}.")
    check_integer(f"the format of {what}", note["format"], HEAD_FORMAT, HEAD_FORMAT)
    check_integer(f"the hidden_size of {what}", note["hidden_size"], 1)
    check_integer(f"the width of {what}", note["width"], 1)
    check_integer(f"the version of {what}", note["version"], 0, LARGEST_VERSION)
