"""Pruning inside unmodified verl: its synchronous PPO trainer, with rollouts that end early.

``python -m arrol.adapters.verl_run --help`` says how to train. A program of your own takes the
settings from verl's composed configuration and the rest from the modules here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arrol.adapters.verl.composition import compose_config
    from arrol.adapters.verl.runner import PruningTaskRunner
    from arrol.adapters.verl.settings import Settings
    from arrol.adapters.verl.versions import check_versions

_HOMES = {
    "PruningTaskRunner": "runner",
    "Settings": "settings",
    "check_versions": "versions",
    "compose_config": "composition",
}

__all__ = ["PruningTaskRunner", "Settings", "check_versions", "compose_config"]


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: the command line must not import torch to print a help."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
