"""What a training request carries from the agent loop through the client to its server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arrol.adapters.verl.rollouts import group_key, rollout_key
from arrol.adapters.vllm.request import ARGUMENT, rollout_seed


def marked(
    sampling: Mapping[str, Any], uid: str, session: int, group_size: int, seed: int | None
) -> dict[str, Any]:
    """Sampling parameters of one training rollout.

    Args:
        sampling: verl's own; left as they are.
        uid: name of the prompt.
        session: place in the group, 0-based.
        group_size: rollouts of the group.
        seed: the run's; each rollout then draws from a stream of its own, which makes a run
            repeatable. None leaves sampling to the engine.
    """
    key = rollout_key(uid, session)
    entry = {"keys": [key], "group": group_key(uid), "index": session, "group_size": group_size}
    changed = {**sampling, "extra_args": {**(sampling.get("extra_args") or {}), ARGUMENT: entry}}
    if seed is not None:
        changed["seed"] = rollout_seed(seed, key)
    return changed


def entry_of(sampling: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The mark of a training rollout; None on any other request (validation, a reward model)."""
    found = ((sampling or {}).get("extra_args") or {}).get(ARGUMENT)
    return found if isinstance(found, dict) else None


def group_of(sampling: Mapping[str, Any] | None) -> str | None:
    """Name of the request's group."""
    entry = entry_of(sampling)
    return None if entry is None else f"group-{entry['group']}"
