"""The trainer's parts that need no training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

import ray

from arrol.adapters.verl.composition import compose_config
from arrol.adapters.verl.replay_buffer import PruningReplayBuffer
from arrol.adapters.verl.rollouts import Row
from arrol.adapters.verl.trainer import PruningTrainer
from arrol.errors import ArrolError


def trainer_of(*overrides: str) -> Any:
    """A trainer that has read its configuration only."""
    trainer = PruningTrainer.__new__(PruningTrainer)
    trainer.config = compose_config(["recipes=grpo_qwen3_1.7b_base", *overrides])
    return trainer


def test_more_gpus_than_there_are_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 16.0, "GPU": 4.0})
    fits = trainer_of("trainer.n_gpus_per_node=2", "trainer.nnodes=2")
    fits._init_resource_pool_mgr()
    assert fits.resource_pool_manager.get_n_gpus() == 4
    with pytest.raises(ArrolError, match=r"takes 6 GPUs .* allowed is at most 4, which is what"):
        trainer_of("trainer.n_gpus_per_node=3", "trainer.nnodes=2")._init_resource_pool_mgr()


def test_a_colocated_reward_model_scores_the_rows_that_are_left() -> None:
    ends = ("stop", "pruned", "stop")
    sampled = [
        Row(f"p0_{i}_0", "p0", i, 9, end == "pruned", end, outcome=None, reward=float("nan"))
        for i, end in enumerate(ends)
    ]
    buffer = PruningReplayBuffer.__new__(PruningReplayBuffer)
    buffer.sampled = sampled
    scored = [replace(sampled[i], reward=float(i), outcome=float(i > 0)) for i in (2, 0)]
    buffer.score(scored)
    assert [row.outcome for row in buffer.sampled] == [0.0, None, 1.0]
    assert buffer.sampled[1] is sampled[1]
