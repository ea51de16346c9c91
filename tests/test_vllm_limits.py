"""What goes wrong: settings that are refused, aborts, preemption, prompts that don't fit."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams
from vllm_engines import (
    engine_process,
    plan_of,
    random_engine,
    random_head,
    random_plain_engine,
)

from arrol.adapters.vllm import PruningLLM, engine_arguments, group_requests
from arrol.adapters.vllm.support import check_config, find_sentinel
from arrol.errors import ArrolError
from arrol.head import QualityHead
from arrol.keys import stable_key
from arrol.records import FinishReason
from arrol.survival import LineRule

PRUNE_ALL = LineRule(base=0.0, slope=0.0, centre=0.0, low=0.0, high=0.0)
PROMPTS = [f"Tell me about {i}." for i in range(6)]


@pytest.fixture(scope="module")
def backend():
    backend = PruningLLM(random_engine(max_num_seqs=7))
    backend.load_head(random_head())
    backend.load_plan(plan_of())
    return backend


def sampling(**changes):
    given = {"temperature": 1.0, "max_tokens": 16, "seed": 3, "ignore_eos": True, **changes}
    return SamplingParams(**given)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"structured_outputs": StructuredOutputsParams(regex="a+")}, "structured_outputs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"min_tokens": 12}, "min_tokens"),
        ({"thinking_token_budget": 4}, "thinking_token_budget"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"n": 2}, "sampling"),
    ],
)
def test_a_setting_that_pruning_can_not_work_with_is_named(backend, changes, name):
    with pytest.raises(ArrolError, match=name) as caught:
        backend.generate(group_requests(PROMPTS, 4, sampling(**changes)))
    assert str(caught.value).count(". ") == 0
    assert backend.llm.llm_engine.get_num_unfinished_requests() == 0


def test_beam_search_is_refused(backend):
    beams = BeamSearchParams(beam_width=2, max_tokens=8)
    with pytest.raises(ArrolError, match="BeamSearchParams"):
        backend.generate(group_requests(PROMPTS, 4, beams))


def test_vllm_itself_refuses_such_requests_too(backend):
    """A client that doesn't use our frontend gets the same sentence from vLLM."""
    params = backend.sampling(sampling(), group_requests(PROMPTS[:1], 1, sampling()))
    params.min_tokens = 12
    with pytest.raises((ValueError, VLLMValidationError), match="min_tokens is 12"):
        backend.llm.generate(PROMPTS[:1], params, use_tqdm=False)


def test_a_setting_of_the_engine_that_pruning_can_not_work_with_is_named():
    config = random_engine(max_num_seqs=7).llm_engine.vllm_config
    check_config(config)
    for name, place, value in (
        ("speculative_config", config, object()),
        ("enable_batch_sharded_sampling", config.parallel_config, True),
        ("runner_type", config.model_config, "pooling"),
    ):
        if not hasattr(place, name):
            continue  # not in this version of vLLM
        before = getattr(place, name)
        try:
            object.__setattr__(place, name, value)
            with pytest.raises(ArrolError, match=name):
                check_config(config)
        finally:
            object.__setattr__(place, name, before)


@pytest.mark.parametrize(
    ("name", "value"),
    [("speculative_config", {"method": "ngram"}), ("enable_batch_sharded_sampling", True)],
)
def test_such_a_setting_is_refused_before_the_engine_starts(name, value):
    with pytest.raises(ArrolError, match=rf"{name} is .*; allowed"):
        engine_arguments(**{name: value})
    assert engine_arguments(**{name: None})


def test_an_engine_with_speculative_decoding_does_not_start(capfd):
    """Where engine_arguments was not asked, as in ``vllm serve``, vLLM itself says so."""
    ngram = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    with pytest.raises(RuntimeError):
        engine_process(max_num_seqs=4, speculative=ngram)
    said = "".join(capfd.readouterr())
    assert "not supported when speculative decoding is enabled" in said


def test_an_engine_made_without_the_arguments_is_refused():
    plain = random_plain_engine()
    with pytest.raises(ArrolError, match="logits_processors"):
        PruningLLM(plain)


def test_a_second_worker_extension_is_refused():
    with pytest.raises(ArrolError, match=r"worker_extension_cls is 'mine\.Extension'"):
        engine_arguments(worker_extension_cls="mine.Extension")


def test_a_pruned_rollouts_slot_is_free_in_the_next_step(monkeypatch):
    """Two slots, six rollouts, all pruned: three waves of L_detect + 1 steps, none in between."""
    backend = PruningLLM(random_engine(max_num_seqs=2, enable_prefix_caching=False))
    backend.load_head(random_head())
    backend.load_plan(plan_of(rule=PRUNE_ALL, detect_length=8))
    engine = backend.llm.llm_engine
    pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    running = []
    step = engine.step

    def counted():
        outputs = step()
        running.append(engine.get_num_unfinished_requests())
        return outputs

    monkeypatch.setattr(engine, "step", counted)
    rollouts = backend.generate(group_requests(PROMPTS, 1, sampling()))
    assert {(r.finish_reason, r.tokens) for r in rollouts} == {(FinishReason.PRUNED, 8)}
    assert running == [6] * 8 + [4] * 9 + [2] * 9 + [0]
    assert pool.get_num_free_blocks() == free


def test_a_prompt_that_does_not_fit_costs_that_rollout_only(backend):
    requests = group_requests(["short", "x" * 400], 2, sampling())
    rollouts = {r.key: r for r in backend.generate(requests)}
    assert len(rollouts) == 4
    for request in requests:
        rollout = rollouts[request.key]
        if len(request.prompt) > 256:
            assert rollout.finish_reason is FinishReason.FAILED
            assert "256" in rollout.error
        else:
            assert rollout.tokens > 0


def test_closing_the_stream_aborts_the_rest(backend):
    many = [r for name in range(6) for r in group_requests(PROMPTS, 4, sampling(), name=name)]
    stream = backend.stream(many)
    next(stream)
    stream.close()
    assert backend.llm.llm_engine.get_num_unfinished_requests() == 0
    again = backend.generate(many)
    assert len({r.key for r in again}) == len(many)
    found = [r.detection for r in again if r.detection]
    assert repr(plan_of().replay(found)) == repr(found)


def test_a_stop_string_at_the_detection_length_is_no_decision(backend):
    """It ends the rollout at the frontend; whatever the engine decided then is an orphan."""
    plan = plan_of(rule=PRUNE_ALL)
    backend.load_plan(plan)
    stop = sampling(temperature=0.0)
    (whole,) = backend.generate(group_requests(PROMPTS[:1], 1, sampling(temperature=0.0, stop=[])))
    assert whole.finish_reason is FinishReason.PRUNED
    letters = whole.text
    stop = sampling(temperature=0.0, stop=[letters[-1]])
    (rollout,) = backend.generate(group_requests(PROMPTS[:1], 1, stop))
    assert rollout.finish_reason is FinishReason.STOP
    assert rollout.tokens <= plan.detect_length
    assert rollout.detection is None
    backend.load_plan(plan_of())


def test_preempted_rollouts_are_decided_once(monkeypatch):
    """KV blocks for three of eight rollouts: the rest is preempted and computed again."""
    llm = random_engine(
        max_num_seqs=8, block_size=32, num_gpu_blocks_override=9, max_num_batched_tokens=16,
        enable_chunked_prefill=True, enable_prefix_caching=False,
    )  # fmt: skip
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    preempted = []
    preempt = scheduler._preempt_request

    def counted(request, *args, **kwargs):
        preempted.append(request.num_output_tokens)
        return preempt(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", counted)
    backend = PruningLLM(llm)
    backend.load_head(random_head())
    plan = plan_of(detect_length=20)
    backend.load_plan(plan)
    long = sampling(max_tokens=60, temperature=0.0, seed=None)
    requests = group_requests(PROMPTS, 4, long)
    tight = {r.key: r for r in backend.generate(requests)}
    assert len(preempted) > 10
    assert any(tokens >= 20 for tokens in preempted)  # some after their decision
    found = [r.detection for r in tight.values()]
    assert len(found) == len(requests)
    assert repr(plan.replay(found)) == repr(found)
    roomy = PruningLLM(random_engine(max_num_seqs=7))
    roomy.load_head(random_head())
    roomy.load_plan(plan)
    for rollout in roomy.generate(requests):
        assert tight[rollout.key].detection.keep == rollout.detection.keep
        assert tight[rollout.key].token_ids == rollout.token_ids


def test_a_seed_that_would_crash_the_engine_is_refused():
    """vLLM on a CPU rewinds a seeded generator by an offset, which CPU generators don't have."""
    backend = PruningLLM(random_engine(max_num_seqs=4, enable_chunked_prefill=True))
    with pytest.raises(ArrolError, match=r"seed is 3; .* None"):
        backend.generate(group_requests(PROMPTS, 1, sampling()))
    assert len(backend.generate(group_requests(PROMPTS, 1, sampling(seed=None)))) == len(PROMPTS)


def test_a_key_may_come_once(backend):
    requests = group_requests(PROMPTS, 2, sampling())
    with pytest.raises(ArrolError, match="3 requests have the key of another"):
        backend.generate([*requests, *requests[:3]])
    assert len(backend.generate(requests)) == len(requests)


def test_one_batch_at_a_time(backend):
    requests = group_requests(PROMPTS, 2, sampling())
    stream = backend.stream(requests)
    first = next(stream)
    with pytest.raises(ArrolError, match="a batch is under way"):
        backend.generate(requests)
    assert len({first.key, *(r.key for r in stream)}) == len(requests)
    assert len(backend.generate(requests)) == len(requests)


def test_a_head_for_another_model_is_refused_and_the_old_one_stays(backend):
    other = QualityHead(32)
    other.version = 1
    with pytest.raises(ArrolError, match="hidden_size is 32; allowed is 64"):
        backend.load_head(other)
    text = base64.b64encode(other.to_bytes()).decode()
    with pytest.raises(ArrolError, match="hidden_size is 32; allowed is 64"):
        backend.llm.collective_rpc("arrol_load_head", args=(text,))
    rollouts = backend.generate(group_requests(PROMPTS, 2, sampling()))
    assert all(0 <= r.detection.score <= 1 for r in rollouts if r.detection)


@pytest.mark.parametrize("length", [0, -1, 2.5])
def test_a_detection_length_is_at_least_one_token(length):
    with pytest.raises(ArrolError, match="detect_length is"):
        group_requests(PROMPTS, 1, sampling(), detect_length=length)


@pytest.mark.parametrize("wrong", [None, {"max_tokens": 4}])
def test_sampling_is_vllms_own(backend, wrong):
    with pytest.raises(ArrolError, match="allowed is SamplingParams with n = 1"):
        backend.generate(group_requests(PROMPTS, 1, wrong))


class Tokenizer:
    """What :func:`find_sentinel` looks at."""

    def __init__(self, size, special, bos=None, eos=None):
        self.size, self.all_special_ids = size, special
        self.bos_token_id, self.eos_token_id = bos, eos
        self.pad_token_id = self.unk_token_id = None
        self.added_tokens_decoder = {}

    def __len__(self):
        return self.size


def test_the_sentinel_is_behind_the_vocabulary_or_a_spare_special_token():
    assert find_sentinel(Tokenizer(259, []), 320) == 319
    assert find_sentinel(Tokenizer(320, [5, 7, 300, 301], 5, 301), 320) == 300
    assert find_sentinel(Tokenizer(320, [5, 7, 300, 301], 5, 301), 320, ends=[300]) == 7
    for tokenizer in (None, Tokenizer(320, [5, 301], 5, 301)):
        with pytest.raises(ArrolError, match="sentinel"):
            find_sentinel(tokenizer, 320)


def test_an_own_sentinel_is_used_and_checked():
    llm = random_engine(max_num_seqs=7)
    with pytest.raises(ArrolError, match="sentinel is 320"):
        PruningLLM(llm, sentinel=320)
    backend = PruningLLM(llm, sentinel=300)
    backend.load_head(random_head())
    backend.load_plan(plan_of(rule=PRUNE_ALL))
    rollouts = backend.generate(group_requests(PROMPTS, 2, sampling()))
    assert {r.finish_reason for r in rollouts} == {FinishReason.PRUNED}


def test_keys_follow_from_name_and_place():
    made = group_requests(PROMPTS, 2, sampling(), name=3)
    assert made[3].key == stable_key(3, 1, 1)
    assert made[3].group == stable_key(3, 1)
    assert len({replace(r).key for r in made}) == 12
    with pytest.raises(ArrolError, match="prompt 1 is empty"):
        group_requests(["a", ""], 2, sampling())
