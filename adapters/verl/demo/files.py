"""The demo's files: the tiny model and the prompts, made once for each work folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrol.adapters.verl.demo.arithmetic import draw, question
from arrol.errors import ArrolError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_DATA = "data-1"
"""The folder's name; count it up, here and in cpu.yaml, when what is made changes."""

_SEED = 1
_PROMPTS = {"train": 1024, "val": 64}


def work_folder(config: DictConfig) -> Path:
    """``config.demo_dir`` as an absolute path; :class:`ArrolError` if no folder can be there."""
    name = config.get("demo_dir")
    if not isinstance(name, str) or not name or os.pathsep in name:
        raise ArrolError(f"demo_dir is {name!r}; allowed is a folder without {os.pathsep!r}.")
    try:
        folder = Path(name).expanduser().resolve()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise ArrolError(f"demo_dir {name!r} can't be made: {reason}.") from None
    return folder


def make(folder: Path) -> None:
    """Write ``folder/data-1`` (the model and the prompts) unless it is there.

    The files are made under another name and renamed at the end, so a killed demo leaves no half.

    Raises:
        ArrolError: the folder can't be written to.
    """
    target = folder / _DATA
    if target.exists():
        return
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".data.", dir=folder))
        try:
            _write(temporary)
            temporary.chmod(0o755)
            _rename(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, _safetensors_error()) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArrolError(f"demo_dir {str(folder)!r} can't be written to: {reason}.") from None


def _safetensors_error() -> type[Exception]:
    """What a model's writer raises where the disk is full; no OSError."""
    from safetensors import SafetensorError

    found: type[Exception] = SafetensorError
    return found


def _rename(temporary: Path, target: Path) -> None:
    try:
        os.rename(temporary, target)
    except OSError:
        if not target.is_dir():  # if it is, another demo was faster: the same files
            raise


def _write(folder: Path) -> None:
    from arrol.adapters.verl.demo.model import make_model, make_tokenizer
    from arrol.adapters.verl.demo.pretrain import pretrain

    print("Training the demo's model to add (once, about half a minute) ...", flush=True)
    tokenizer = make_tokenizer()
    model = make_model(_SEED)
    right = pretrain(model, tokenizer, _SEED)
    print(f"It writes a whole answer right with probability {right:.2f}.", flush=True)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    seed = 2**20  # away from the seeds of the model's own training
    for name, count in _PROMPTS.items():
        seed += 1
        _write_prompts(folder / f"{name}.parquet", draw(count, seed))


def _write_prompts(path: Path, pairs: list[tuple[int, int]]) -> None:
    import pandas as pd

    pd.DataFrame([_row(index, *pair) for index, pair in enumerate(pairs)]).to_parquet(path)


def _row(index: int, first: int, second: int) -> dict[str, Any]:
    """One prompt in the columns that verl's datasets have."""
    return {
        "data_source": "arrol-demo",
        "prompt": [{"role": "user", "content": question(first, second)}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(first + second)},
        "extra_info": {"index": index},
    }
