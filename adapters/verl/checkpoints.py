"""Which checkpoint a run goes on from."""

from __future__ import annotations

from pathlib import Path

from arrol.errors import ArrolError
from arrol.files import write_atomically

FOLDER = "arrol"  #: of a checkpoint, for what is ours
MARKER = "latest_checkpointed_iteration.txt"  #: verl's note of the last whole checkpoint


def step_folder(folder: Path | str, step: int) -> Path:
    """Where verl puts the checkpoint of a step."""
    return Path(folder) / f"global_step_{step}"


def mend_marker(folder: Path) -> None:
    """Write verl's marker anew where a kill has left it empty.

    verl opens the marker anew for each checkpoint, once all else is written: killed just then, it
    leaves an empty file, which it can't read afterwards. The newest checkpoint is then whole.

    Args:
        folder: of the run's checkpoints.
    """
    marker = folder / MARKER
    if not marker.is_file() or marker.read_text("utf-8", "replace").strip().isdecimal():
        return
    whole = [
        int(name)
        for path in folder.glob("global_step_*")
        if (name := path.name.removeprefix("global_step_")).isdecimal()
        and (path / "data.pt").is_file()
    ]
    if whole:
        write_atomically(marker, str(max(whole)))
    else:
        marker.unlink()


def check_marker(folder: Path) -> None:
    """See that the checkpoint which verl's marker names is there.

    verl would say so in its log only, and begin anew.

    Raises:
        ArrolError: it is gone.
    """
    marker = folder / MARKER
    step = marker.read_text("utf-8", "replace").strip() if marker.is_file() else ""
    if step.isdecimal() and not (named := step_folder(folder, int(step))).is_dir():
        raise ArrolError(
            f"{marker} names step {step}, whose folder {named.name} is gone; allowed is "
            "a folder with it, or trainer.resume_mode=disable to begin anew."
        )
