"""What a decision depends on, and under which plan and head it is made: on the real engine."""

from __future__ import annotations

import logging
import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from dataclasses import replace

from vllm import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError
from vllm_engines import engine_process, plan_of, random_engine, random_head

import arrol.adapters.vllm.llm as llm_module
from arrol.adapters.vllm import PruningEngines, PruningLLM, group_requests
from arrol.config import Draw
from arrol.records import DecisionReason, FinishReason, Mode
from arrol.survival import FeedbackRule, LineRule

PROMPTS = [f"Tell me about {i}." for i in range(6)]
SAMPLING = SamplingParams(temperature=1.0, max_tokens=16, seed=3, ignore_eos=True)
PRUNE_ALL = LineRule(base=0.0, slope=0.0, centre=0.0, low=0.0, high=0.0)
KEEP_ALL = LineRule(base=1.0, slope=0.0, centre=0.0, low=1.0, high=1.0)
FEEDBACK = FeedbackRule(
    keep_ratio=0.5, early_share=0.0, target=0.5, strength=0.5, mean=0.5, variance=0.05, low=0.1,
    high=0.9, min_survivors=0,
)  # fmt: skip


def frontend(llm, engine=0):
    backend = PruningLLM(llm, engine)
    backend.load_head(random_head())
    return backend


def requests(**changes):
    made = group_requests(PROMPTS, 4, SAMPLING, name="run")
    return [replace(request, **changes) for request in made]


def decisions(rollouts):
    """What must be the same whatever the order, the slots and the engines."""
    return {
        r.key: (r.detection.score, r.detection.survival, r.detection.keep, r.tokens)
        for r in rollouts
    }


@pytest.fixture(scope="module")
def reference():
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of())
    found = decisions(backend.generate(requests()))
    keeps = [keep for _, _, keep, _ in found.values()]
    assert 0 < sum(keeps) < len(keeps)
    return found


def test_bernoulli_decisions_do_not_depend_on_the_order(reference):
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of())
    assert decisions(backend.generate(requests()[::-1])) == reference


@pytest.mark.parametrize("slots", [1, 3, 32])
def test_bernoulli_decisions_do_not_depend_on_the_slots(reference, slots):
    backend = frontend(random_engine(max_num_seqs=slots))
    backend.load_plan(plan_of())
    assert decisions(backend.generate(requests())) == reference


@pytest.fixture(scope="module")
def two_engines():
    """With processes of their own."""
    return PruningEngines(
        [PruningLLM(engine_process(max_num_seqs=4), number) for number in range(2)]
    )


def test_bernoulli_decisions_do_not_depend_on_the_number_of_engines(reference, two_engines):
    engines = two_engines
    engines.load_head(random_head())
    engines.load_plan(plan_of())
    rollouts = engines.generate(requests())
    assert decisions(rollouts) == reference
    assert {r.detection.engine for r in rollouts} == {0, 1}
    of_group = {r.group: r.detection.engine for r in rollouts}
    assert all(of_group[r.group] == r.detection.engine for r in rollouts)
    systematic = plan_of(rule=FEEDBACK, draw=Draw.SYSTEMATIC)
    engines.load_plan(systematic)
    found = [r.detection for r in engines.generate(requests())]
    assert repr(systematic.replay(found)) == repr(found)


def kill_engine(llm):
    """The engine's process, and with it its worker, dies at once."""
    for process in llm.llm_engine.engine_core.resources.engine_manager.processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()


def test_bernoulli_decisions_survive_an_engine_restarted_in_mid_run(
    reference, two_engines, monkeypatch
):
    """Half of the batch; the engine ends; a new one that knows nothing makes the other half."""
    monkeypatch.setattr(llm_module, "FETCH", 4)  # hand over early
    old = two_engines.engines.pop()
    old.load_head(random_head())
    old.load_plan(plan_of())
    found = decisions(old.generate(requests()[:12]))
    assert len(found) == 12
    # Killed while it makes the rest: what was handed over by then stands.
    stream, rest = old.stream(requests()[12:]), []
    rest.append(next(stream))
    kill_engine(old.llm)
    with pytest.raises(EngineDeadError):
        rest.extend(stream)
    assert 0 < len(rest) < 12
    new = frontend(engine_process(max_num_seqs=5))
    new.load_plan(plan_of())
    missing = {r.key for r in requests()[12:]} - {r.key for r in rest}
    rest += new.generate([r for r in requests() if r.key in missing])
    assert found | decisions(rest) == reference


def test_an_engine_that_lost_head_and_plan_gets_them_again(reference):
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of())
    backend.llm.collective_rpc("arrol_load_head")
    backend.llm.collective_rpc("arrol_load_plan")
    assert decisions(backend.generate(requests())) == reference


def test_an_engine_without_a_head_keeps_everything_and_says_so_once(caplog):
    backend = PruningLLM(random_engine(max_num_seqs=7))
    backend.load_head(None)
    backend.load_plan(plan_of(rule=PRUNE_ALL))
    with caplog.at_level(logging.WARNING, logger="arrol"):
        rollouts = backend.generate(requests())
    assert {r.detection.reason for r in rollouts} == {DecisionReason.NO_HEAD}
    assert all(r.survived for r in rollouts)
    said = [record.message for record in caplog.records if "quality head" in record.message]
    assert len(said) == 1


def test_an_old_head_keeps_everything():
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of(rule=PRUNE_ALL, head_version=2))
    rollouts = backend.generate(requests())
    assert {r.detection.reason for r in rollouts} == {DecisionReason.OLD_HEAD}
    backend.load_head(random_head(2))
    assert {r.finish_reason for r in backend.generate(requests())} == {FinishReason.PRUNED}


def test_a_plan_that_is_pushed_in_mid_run_decides_from_the_next_step_on():
    """Seven slots: the first rollouts are done long before the last are decided."""
    backend = frontend(random_engine(max_num_seqs=7))
    plans = [plan_of(version=v, rule=rule) for v, rule in ((1, KEEP_ALL), (2, PRUNE_ALL))]
    backend.load_plan(plans[0])
    rollouts = []
    many = [r for name in range(6) for r in group_requests(PROMPTS, 4, SAMPLING, name=name)]
    for rollout in backend.stream(many):
        if not rollouts:
            backend.load_plan(plans[1])
        rollouts.append(rollout)
    assert len({r.key for r in rollouts}) == len(many)
    by_version = {v: [r for r in rollouts if r.detection.version == v] for v in (1, 2)}
    assert all(r.survived for r in by_version[1])
    assert {r.finish_reason for r in by_version[2]} == {FinishReason.PRUNED}
    # Nothing decided after the push is of the old version: those were decided before it.
    assert len(by_version[1]) < len(many) // 2
    assert 0 < backend.batch.stale <= len(by_version[1])
    for plan in plans:
        found = [r.detection for r in by_version[plan.version]]
        assert repr(plan.replay(found)) == repr(found)


def test_a_plan_lost_in_mid_run_is_reported(caplog):
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of(rule=PRUNE_ALL))
    many = [r for name in range(4) for r in group_requests(PROMPTS, 4, SAMPLING, name=name)]
    lost = False
    with caplog.at_level(logging.WARNING, logger="arrol"):
        for _ in backend.stream(many):
            if not lost:
                backend.llm.collective_rpc("arrol_load_plan")
                lost = True
    assert backend.batch.undecided > 0
    assert sum("lost its plan" in record.message for record in caplog.records) == 1


def test_several_detection_lengths_in_one_batch():
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of(rule=PRUNE_ALL, detect_length=5))
    made = [replace(r, detect_length=(None, 2, 9, 15)[r.index]) for r in requests()]
    wanted = {r.key: r.detect_length or 5 for r in made}
    rollouts = backend.generate(made)
    assert {r.key: r.tokens for r in rollouts} == wanted
    assert {r.finish_reason for r in rollouts} == {FinishReason.PRUNED}


def test_a_detection_length_at_the_token_limit_decides_nothing():
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of(rule=PRUNE_ALL, detect_length=16))
    rollouts = backend.generate(requests())
    assert all(r.detection is None and r.tokens == 16 for r in rollouts)
    backend.load_plan(plan_of(rule=PRUNE_ALL, detect_length=15))
    rollouts = backend.generate(requests())
    assert {(r.finish_reason, r.tokens) for r in rollouts} == {(FinishReason.PRUNED, 15)}


def test_one_request_with_n_rollouts():
    """``LLM.generate`` with n = 4 makes a whole group; decisions are those of single requests."""
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of())
    groups = [requests()[place : place + 4] for place in range(0, 24, 4)]
    # One token to choose from: greedy, which vLLM refuses for n > 1 if it is called so.
    one, many = (
        SamplingParams(temperature=1.0, top_k=1, max_tokens=16, ignore_eos=True, n=n)
        for n in (1, 4)
    )
    single = decisions(backend.generate([replace(r, sampling=one) for g in groups for r in g]))
    backend.load_plan(plan_of())
    params = [backend.sampling(many, group) for group in groups]
    outputs = backend.llm.generate(PROMPTS, params, use_tqdm=False)
    rollouts = []
    for group, output in zip(groups, outputs, strict=True):
        rollouts += backend.collect(group, output)
    assert decisions(rollouts) == single
    assert {r.detection.index for r in rollouts} == {0, 1, 2, 3}


def test_mode_shadow_counts_nothing_as_pruned():
    backend = frontend(random_engine(max_num_seqs=7))
    backend.load_plan(plan_of(mode=Mode.SHADOW, rule=PRUNE_ALL))
    rollouts = backend.generate(requests())
    assert all(not r.detection.keep and r.survived and r.tokens == 16 for r in rollouts)
    assert backend.status()["pruned"] == 0
    assert backend.status()["decided"] == len(rollouts)


def test_the_readmes_loop_learns_a_head_and_prunes_by_it(monkeypatch):
    """As it stands there, but for the model, lengths and the cold start."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    codes = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (code,) = (code for code in codes if "def train" in code)
    for old, new in (
        ('LLM(model="Qwen/Qwen3-1.7B", **engine_arguments())', "ENGINE"),
        ("hidden_size=2048", "hidden_size=64"),
        ("PruningConfig.balanced()", "PruningConfig.balanced(cold_start_steps=1, detect_length=8)"),
        ("max_tokens=8192", "max_tokens=16, ignore_eos=True"),
    ):
        assert old in code
        code = code.replace(old, new)
    names = {"ENGINE": random_engine(max_num_seqs=7)}
    exec(code, names)
    batches = [[f"Tell me about {i} and {step}." for i in range(6)] for step in range(4)]
    steps = list(names["train"](batches, lambda r: float(sum(r.token_ids) % 2)))
    pruned = [sum(r.finish_reason is FinishReason.PRUNED for r in rs) for rs, _, _ in steps]
    assert len(steps) == 4
    assert pruned[0] == 0
    assert all(count > 0 for count in pruned[2:])
    assert 0.4 < steps[-1][2]["keep_rate"] < 0.6


def test_ranks_of_a_tensor_parallel_engine_decide_alike(reference):
    """Two ranks share every layer, and each decides for itself: they must not differ."""
    backend = frontend(engine_process(max_num_seqs=7, tensor_parallel_size=2))
    backend.load_plan(plan_of())
    found = {r.key: (r.detection.keep, r.tokens) for r in backend.generate(requests())}
    assert found == {key: (keep, tokens) for key, (_, _, keep, tokens) in reference.items()}
    ranks = backend.llm.collective_rpc("arrol_status")
    assert len(ranks) == 2
    assert ranks[0] == ranks[1]
