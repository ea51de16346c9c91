"""Engines on a tiny random Qwen3, and plans for them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from vllm import LLM
from vllm_models import save_random_qwen3
from vllm_settings import set_in_process

from arrol.adapters.vllm import engine_arguments
from arrol.calibration import CalibrationTable, TableKind
from arrol.config import Draw
from arrol.head import QualityHead
from arrol.plan import PruningPlan
from arrol.records import Mode
from arrol.survival import LineRule

HIDDEN = 64  # of the random model


@cache
def random_model() -> Path:
    """The model, made once a process."""
    return save_random_qwen3(Path(mkdtemp(prefix="arrol-qwen3-")))


def random_arguments(**arguments: Any) -> dict[str, Any]:
    """Arguments of a small engine in float32."""
    small = {
        "model": str(random_model()), "max_model_len": 256, "enforce_eager": True, "seed": 0,
        "dtype": "float32", "kv_cache_memory_bytes": 2**26,
    }  # fmt: skip
    return {**small, **arguments}


@cache
def random_engine(**arguments: Any) -> LLM:
    """An engine in this process, shared by all tests that want these arguments.

    It is never given up: vLLM would tear down what all engines of the process share.
    """
    set_in_process(True)
    return LLM(**engine_arguments(**random_arguments(**arguments)))


@cache
def random_plain_engine() -> LLM:
    """An engine that was made without our arguments."""
    set_in_process(True)
    return LLM(**random_arguments(max_num_seqs=2))


def engine_process(speculative: dict[str, Any] | None = None, **arguments: Any) -> LLM:
    """An engine in a process of its own, which ends with it."""
    set_in_process(False)
    given = engine_arguments(**random_arguments(**arguments))
    return LLM(**given, speculative_config=speculative)


def random_head(version: int = 1) -> QualityHead:
    """An untrained head whose scores spread."""
    head = QualityHead(HIDDEN, seed=version)
    head.version = version
    return head


def plan_of(**changes: Any) -> PruningPlan:
    """Independent draws; p falls from .9 to .1 with the score."""
    plan = PruningPlan(
        version=1,
        head_version=1,
        mode=Mode.ON,
        detect_length=8,
        seed=11,
        draw=Draw.BERNOULLI,
        rule=LineRule(base=0.5, slope=-3.0, centre=0.5, low=0.1, high=0.9),
        calibration=CalibrationTable(TableKind.LINEAR, (0.0, 1.0), (0.0, 1.0)),
    )
    return replace(plan, **changes)
