"""From vLLM's outputs to rollouts: the sentinel goes, the decision stays."""

from __future__ import annotations

from typing import Any

from arrol.adapters.vllm.pruner import Record
from arrol.adapters.vllm.request import FINISH_REASONS, RolloutRequest, TokenRollout
from arrol.records import FinishReason


def finished(
    request: RolloutRequest, output: Any, record: Record | None, sentinel: int, detect_length: int
) -> tuple[TokenRollout, Record | None]:
    """A rollout, and its record if that is an orphan.

    Args:
        request: what was asked for.
        output: vLLM's ``CompletionOutput``.
        record: the engine's decision, if it made one.
        sentinel: token that ends pruned rollouts.
        detect_length: L_detect [tokens].

    Returns:
        The rollout. A record of one that ended at or before L_detect (its stop string was found
        while the engine went on, say) is handed back beside it: no decision was carried out.
    """
    ids = tuple(output.token_ids)
    logprobs = None if output.logprobs is None else tuple(output.logprobs)
    pruned = bool(ids) and ids[-1] == sentinel and output.stop_reason == sentinel
    reason = FINISH_REASONS.get(output.finish_reason or "", FinishReason.FAILED)
    if pruned:
        ids = ids[:-1]
        logprobs = logprobs and logprobs[:-1]
        reason = FinishReason.PRUNED
    orphan = None
    if record is not None and not pruned and len(ids) <= detect_length:
        record, orphan = None, record
    failed = reason is FinishReason.FAILED
    rollout = TokenRollout(
        key=request.key,
        group=request.group,
        index=request.index,
        tokens=len(ids),
        finish_reason=reason,
        detection=None if record is None else record.detection,
        text=output.text,
        token_ids=ids,
        logprobs=logprobs,
        hidden=None if record is None else record.hidden,
        stop_reason=None if pruned else output.stop_reason,
        error=f"vLLM ended it: {output.finish_reason}" if failed else "",
    )
    return rollout, orphan


def failed(request: RolloutRequest, error: str) -> TokenRollout:
    """A rollout that the engine could not run."""
    return TokenRollout(
        request.key, request.group, request.index, 0, FinishReason.FAILED, error=error
    )
