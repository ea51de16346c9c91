"""Training in the other modes: shadow, dynamic sampling, and off, which is plain verl."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

import verl_toy as toy
from verl_toy import BATCH, GROUP, STEPS, Run, train

PLAIN = Path(__file__).with_name("verl_plain.py")
GREEDY = (
    # Always the likeliest token: verl's own seeds are one for all, or none. Rollouts of a prompt
    # are then alike, so advantages are taken over the batch.
    "actor_rollout_ref.rollout.top_k=1", "algorithm.adv_estimator=reinforce_plus_plus",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16", "trainer.total_training_steps=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def shadow(toy_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(
        toy_files, tmp_path_factory.mktemp("shadow"), "arrol.mode=shadow", "trainer.test_freq=2",
        f"trainer.total_training_steps={STEPS}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def dapo(toy_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Dynamic sampling, the paper's own rule, two servers and two data-parallel ranks."""
    return train(
        toy_files, tmp_path_factory.mktemp("dapo"), "arrol.mode=on", "arrol.preset=paper",
        "algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        f"trainer.total_training_steps={STEPS}",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        "trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2",
    )  # fmt: skip


def test_the_reward_rises_in_shadow_mode(shadow: Run) -> None:
    toy.rises(shadow)


def test_the_reward_rises_with_dynamic_sampling(dapo: Run) -> None:
    toy.rises(dapo, "arrol/pass_rate")


def test_shadow_decides_and_keeps_everything(shadow: Run) -> None:
    for step in shadow.steps:
        rollouts = shadow.rollouts(step)
        assert {r["finish_reason"] for r in rollouts} <= {"stop", "length"}
        assert not any(r["detection"]["enforced"] for r in rollouts if "detection" in r)
    last = [r["detection"] for r in shadow.rollouts(STEPS) if "detection" in r]
    assert {d["keep"] for d in last} == {True, False}


def test_validation_is_left_alone(shadow: Run) -> None:
    for step in (2, STEPS):
        accuracy = shadow.steps[step]["val-core/toy/acc/mean@1"]
        assert accuracy * 8 == round(accuracy * 8)  # the toy has 8 prompts to validate with
    # Its rollouts are none of the step's.
    assert shadow.steps[4]["arrol/rollouts"] == BATCH * GROUP == len(shadow.rollouts(4))


def test_plans_and_weights_are_those_of_the_step(dapo: Run) -> None:
    toy.in_step(dapo)


def test_a_filtered_group_is_replaced_and_still_observed(dapo: Run) -> None:
    name = "training/filter_groups/evicted_samples"
    evicted = [metrics.get(name, 0) for metrics in dapo.steps.values()]
    assert sum(evicted) > 0
    for step, metrics in dapo.steps.items():
        rollouts = dapo.rollouts(step)
        assert metrics["arrol/rollouts"] == len(rollouts)
        assert len(rollouts) == (BATCH + metrics["arrol/refilled_prompts"]) * GROUP
        for reason in ("too_few_survivors", "all_right", "all_wrong"):
            assert metrics[f"arrol/trained_groups_{reason}"] == 0


def test_a_group_stays_with_one_server(dapo: Run) -> None:
    servers = defaultdict(set)
    for step in dapo.steps:
        for row in dapo.rollouts(step):
            if "detection" in row:
                servers[row["group"]].add(row["detection"]["engine"])
    assert {len(found) for found in servers.values()} == {1}
    assert set().union(*servers.values()) == {0, 1}


def test_mode_off_is_plain_verl(toy_files: Path, tmp_path: Path) -> None:
    off = train(toy_files, tmp_path / "off", *GREEDY, "arrol.mode=off")
    plain = train(toy_files, tmp_path / "plain", *GREEDY, program=(str(PLAIN),))
    assert (off.code, plain.code) == (0, 0), off.log[-2000:] + plain.log[-2000:]
    assert off.steps.keys() == plain.steps.keys() == {1, 2, 3}
    assert not any(name.startswith("arrol") for name in off.steps[1])
    for step, metrics in plain.steps.items():
        assert off.steps[step].keys() == metrics.keys()
        for name, value in metrics.items():
            if not toy.CLOCK.match(name) and value is not None:
                # Rows come in the order in which they were done, which rounds sums differently.
                assert off.steps[step][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
