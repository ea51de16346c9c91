"""The trainer's parts that need no training."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from arrol.adapters.verl.composition import compose_config
from arrol.adapters.verl.replay_buffer import PruningReplayBuffer
from arrol.adapters.verl.rollouts import Row
from arrol.adapters.verl.runner import check_gpus
from arrol.errors import ArrolError


def test_more_gpus_than_there_are_is_one_sentence() -> None:
    words = ["recipes=grpo_qwen3_1.7b_base", "trainer.n_gpus_per_node=2", "trainer.nnodes=2"]
    check_gpus(compose_config(words), {"CPU": 16.0, "GPU": 4.0})
    with pytest.raises(ArrolError, match=r"takes 4 GPUs .* allowed is at most 3, which is what"):
        check_gpus(compose_config(words), {"CPU": 16.0, "GPU": 3.0})
    pool = [f"reward.reward_model.{word}" for word in ("enable_resource_pool=true", "nnodes=1",
                                                       "n_gpus_per_node=3")]  # fmt: skip
    with pytest.raises(ArrolError, match="takes 7 GPUs"):
        check_gpus(compose_config([*words, *pool]), {"GPU": 4.0})


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
