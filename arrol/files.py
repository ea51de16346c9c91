"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from arrol.errors import ArrolError


def write_atomically(path: Path | str, data: str | bytes) -> None:
    """Write ``data`` to a temporary file beside ``path``, sync it, and rename it onto ``path``.

    Whenever the process is killed, ``path`` holds the old content or the new one, never a part.

    Raises:
        ArrolError: the folder can't be written to.
    """
    path = Path(path)
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
