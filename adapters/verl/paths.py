"""Whether the files and folders that a configuration names are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arrol.adapters.verl.checkpoints import FOLDER, check_marker
from arrol.adapters.verl.settings import select
from arrol.errors import ArrolError, as_member
from arrol.records import Mode

DATA = (".parquet", ".json", ".jsonl")  #: what verl reads prompts from
RESUME = ("auto", "disable", "resume_path")  #: verl's ways to start


def check_files(config: Any) -> None:
    """See that the model, the data, the reward function and the checkpoint lie where they should.

    A model that is no path is looked up by its name, and anything with ``://`` is fetched: that
    is left to verl, and so are files read by a dataset class of the user's.

    Raises:
        ArrolError: naming the first that is missing.
    """
    _check_model(select(config, "actor_rollout_ref.model.path"))
    for key in ("data.custom_cls.path", "reward.custom_reward_function.path"):
        path = select(config, key)
        if isinstance(path, str) and not path.startswith("pkg://") and not _found(path):
            raise ArrolError(f"{key} is {path!r}; allowed is a Python file that exists.")
    if select(config, "data.custom_cls.path") is None:
        for key in ("data.train_files", "data.val_files"):
            _check_data(key, select(config, key))
        _check_prompts(config)
    _check_resume(config)
    _check_folder("arrol.rollouts", select(config, "arrol.rollouts"))


def _check_model(path: Any) -> None:
    wrong = not isinstance(path, str) or not path
    if not wrong and "://" not in path and _is(path, folder=True) and not _model_in(path):
        raise ArrolError(
            f"actor_rollout_ref.model.path is {path!r}, a folder without config.json; allowed is "
            "a model's folder."
        )
    if wrong or (path.startswith(("/", "~", ".")) and not _is(path, folder=True)):
        raise ArrolError(
            f"actor_rollout_ref.model.path is {path!r}; allowed is a folder that exists, or a "
            "model's name on the Hugging Face hub."
        )


def _model_in(path: str) -> bool:
    return _is(str(Path(path) / "config.json"), folder=False)


def _check_data(key: str, files: Any) -> None:
    for file in _listed(files) or [None]:
        fits = isinstance(file, str) and file.endswith(DATA) and _is(file, folder=False)
        if not fits:
            raise ArrolError(
                f"{key} is {file!r}; allowed is a file that exists and ends in {', '.join(DATA)}, "
                "or a list of such."
            )


def _check_prompts(config: Any) -> None:
    """See that Parquet files have prompts, and the training files enough for a batch."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    column, batch = select(config, "data.prompt_key"), select(config, "data.train_batch_size")
    for key, least in (("data.train_files", batch), ("data.val_files", 1)):
        listed = _listed(select(config, key))
        if not all(file.endswith(".parquet") and "://" not in file for file in listed):
            continue
        rows = 0
        for file in listed:
            try:
                found = ParquetFile(Path(file).expanduser())
            except (ArrowException, OSError):
                raise ArrolError(f"{key} is {file!r}; allowed is a Parquet file.") from None
            if column not in found.schema_arrow.names:
                raise ArrolError(
                    f"{key} is {file!r}, without the column {column!r}; allowed is verl's format "
                    "(data.prompt_key names the column of the prompts)."
                )
            rows += found.metadata.num_rows
        if rows < least:
            raise ArrolError(f"{key} has {rows} prompts; allowed is at least {least}, a batch.")


def _check_resume(config: Any) -> None:
    mode = select(config, "trainer.resume_mode")
    if mode not in RESUME:
        raise ArrolError(f"trainer.resume_mode is {mode!r}; allowed is {', '.join(RESUME)}.")
    local = select(config, "trainer.default_local_dir")
    if mode == "auto" and isinstance(local, str) and "://" not in local:
        check_marker(Path(local))
    if mode != "resume_path":
        return
    path = select(config, "trainer.resume_from_path")
    if not isinstance(path, str) or "global_step_" not in path or not _is(path, folder=True):
        raise ArrolError(
            f"trainer.resume_from_path is {path!r}; allowed is a folder global_step_N that exists."
        )
    pruning = as_member("arrol.mode", Mode, select(config, "arrol.mode")) is not Mode.OFF
    if pruning and not (Path(path) / FOLDER).is_dir():
        raise ArrolError(
            f"trainer.resume_from_path is {path!r}, which has no folder {FOLDER!r}; allowed is a "
            "checkpoint that was saved with arrol.mode on or shadow."
        )


def _check_folder(key: str, path: Any) -> None:
    if path is None:
        return
    place = _place(path)
    try:
        if place is None:
            raise OSError
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise ArrolError(
            f"{key} is {path!r}; allowed is a folder, or a new one where one can be made."
        ) from None


def _is(path: str, folder: bool) -> bool:
    if "://" in path:
        return True
    place = _place(path)
    return place is not None and (place.is_dir() if folder else place.is_file())


def _found(path: str) -> bool:
    place = _place(path)
    return "://" in path or (place is not None and place.exists())


def _place(path: str) -> Path | None:
    """The path with ~ put in; None if it can be none."""
    try:
        place = Path(path).expanduser()
        place.exists()
    except (OSError, RuntimeError, ValueError):  # no such user, too long, a NUL
        return None
    return place


def _listed(files: Any) -> list[Any]:
    """One file, or several."""
    from omegaconf import ListConfig

    return list(files) if isinstance(files, (list, tuple, ListConfig)) else [files]
