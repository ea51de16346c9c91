"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from arrol.errors import ArrolError


def write_atomically(path: Path | str, data: str | bytes) -> None:
    """Write ``data`` to a temporary file beside ``path``, sync it, and rename it onto ``path``.

    Whenever the process is killed, ``path`` holds the old content or the new one, never a part. A
    link is followed: what it points to is replaced, not the link.

    Raises:
        ArrolError: the folder can't be written to, or ``path`` is there and no regular file.
    """
    path = writable_file(path)
    content = data.encode() if isinstance(data, str) else data
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        reason = error.strerror or str(error)
        raise ArrolError(f"{path} can't be written: {reason}.") from None


def writable_file(path: Path | str) -> Path:
    """Where ``path`` leads, if a file can be put there: nothing yet, or a regular file.

    Raises:
        ArrolError: it is a folder, a device, a pipe or a link that leads nowhere.
    """
    try:
        target = Path(path).resolve()
        special = target.is_symlink() or (target.exists() and not target.is_file())
    except (OSError, RuntimeError, ValueError) as error:  # too long, no permission, a loop, a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise ArrolError(f"{path} can't be written: {reason}.") from None
    if special or not str(path):
        raise ArrolError(f"{str(path)!r} can't be written: allowed is a new or a regular file.")
    return target


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
