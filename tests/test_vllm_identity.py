"""The same tokens as without pruning, the decisions that the plan makes, the hidden state that a
plain transformers model has: on the real engine, in float32."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from transformers import AutoModelForCausalLM
from vllm import SamplingParams
from vllm_engines import plan_of, random_engine, random_head, random_model

from arrol.adapters.vllm import PruningLLM, group_requests
from arrol.records import FinishReason, Mode

PROMPTS = [f"Question {i}: what is {i} plus {i * 3}? Answer:" for i in range(6)]
L_DETECT = 8


@pytest.fixture(scope="module")
def backend():
    """Fewer slots than rollouts, so that slots are used again."""
    backend = PruningLLM(random_engine(max_num_seqs=7))
    backend.load_head(random_head())
    return backend


def run(backend, mode, temperature, **changes):
    backend.load_plan(plan_of(mode=mode, detect_length=L_DETECT, **changes))
    sampling = SamplingParams(temperature=temperature, max_tokens=24, seed=5, logprobs=0)
    requests = group_requests(PROMPTS, 4, sampling)
    return {rollout.key: rollout for rollout in backend.generate(requests)}


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "sampled"])
def runs(request, backend):
    return {mode: run(backend, mode, request.param) for mode in Mode}


def test_survivors_have_the_tokens_that_they_have_in_shadow_mode(runs):
    survivors = [r for r in runs[Mode.ON].values() if r.survived]
    assert 0 < len(survivors) < len(runs[Mode.ON])
    for rollout in survivors:
        shadow = runs[Mode.SHADOW][rollout.key]
        assert rollout.token_ids == shadow.token_ids
        assert rollout.text == shadow.text
        enforced = shadow.detection and shadow.detection._replace(enforced=True)
        assert rollout.detection == enforced


def test_pruned_rollouts_are_the_start_of_their_shadow(runs, backend):
    pruned = [r for r in runs[Mode.ON].values() if r.finish_reason is FinishReason.PRUNED]
    assert pruned
    for rollout in pruned:
        shadow = runs[Mode.SHADOW][rollout.key]
        assert rollout.token_ids == shadow.token_ids[:L_DETECT]
        assert rollout.tokens == L_DETECT == len(rollout.logprobs)
        assert rollout.stop_reason is None
        assert rollout.detection.pruned
        assert shadow.text.startswith(rollout.text.rstrip("�"))


def test_the_sentinel_is_nowhere(runs, backend):
    for rollouts in (runs[Mode.ON], runs[Mode.SHADOW]):
        for rollout in rollouts.values():
            assert backend.sentinel not in rollout.token_ids
            assert len(rollout.token_ids) == len(rollout.logprobs) == rollout.tokens
            taken = zip(rollout.token_ids, rollout.logprobs, strict=True)
            assert all(token in position for token, position in taken)


def test_flags_records_and_tokens_agree(runs):
    for rollout in runs[Mode.ON].values():
        assert (rollout.detection is not None) == (
            rollout.tokens > L_DETECT or rollout.finish_reason is FinishReason.PRUNED
        )
        if rollout.detection:
            assert rollout.detection.pruned == (rollout.finish_reason is FinishReason.PRUNED)


def test_decisions_are_the_plans_own_replay_to_the_last_bit(runs):
    for mode in (Mode.ON, Mode.SHADOW):
        detections = [r.detection for r in runs[mode].values() if r.detection]
        plan = plan_of(mode=mode, detect_length=L_DETECT)
        assert repr(plan.replay(detections)) == repr(detections)


def test_off_is_plain_vllm(runs, backend):
    """A greedy run's tokens must also be those of ``LLM.generate`` without us."""
    off = runs[Mode.OFF]
    assert all(r.detection is None and r.hidden is None for r in off.values())
    shadow = runs[Mode.SHADOW]
    # The sentinel may be sampled where nothing masks it; nobody else may differ.
    free = [key for key, r in off.items() if backend.sentinel not in r.token_ids]
    assert len(free) > len(off) // 2
    assert all(off[key].token_ids == shadow[key].token_ids for key in free)


def test_greedy_tokens_are_those_of_plain_generate(backend):
    off = run(backend, Mode.OFF, 0.0)
    plain = backend.llm.generate(
        PROMPTS, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False
    )
    first = [r for r in sorted(off.values(), key=lambda r: r.index) if r.index == 0]
    found = sorted(r.token_ids for r in first)
    assert found == sorted(tuple(output.outputs[0].token_ids) for output in plain)


def test_the_hidden_state_and_score_are_those_of_transformers(runs, backend):
    """An independent model on the same tokens: prompt and the first L_detect generated ones."""
    model = AutoModelForCausalLM.from_pretrained(random_model(), dtype=torch.float32)
    tokenizer = backend.llm.get_tokenizer()
    head = random_head()
    requests = group_requests(PROMPTS, 4, None)
    decided = [r for r in requests if runs[Mode.SHADOW][r.key].detection]
    for request in decided[::3]:
        rollout = runs[Mode.SHADOW][request.key]
        ids = tokenizer.encode(request.prompt) + list(rollout.token_ids[:L_DETECT])
        with torch.no_grad():
            output = model(torch.tensor([ids]), output_hidden_states=True)
        hidden = output.hidden_states[-1][0, -1]
        np.testing.assert_allclose(rollout.hidden, hidden.numpy(), rtol=2e-3, atol=2e-3)
        score = float(head.scores(hidden[None])[0])
        assert rollout.detection.score == pytest.approx(score, abs=1e-4)
