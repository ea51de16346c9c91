"""Real training: verl's loop with Ray, TransferQueue, FSDP and vLLM's CPU engine, in each mode.

Each run is a process of its own, started as a user starts it; together they take some minutes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
import verl_toy as toy
from verl_toy import BATCH, DETECT, GROUP, REPEATABLE, Run, train

STEPS = 6
PLAIN = Path(__file__).with_name("verl_plain.py")
#: Pruning with a reference model, which is cut into micro-batches of its own.
ON = (
    *REPEATABLE, "arrol.mode=on", "trainer.save_freq=2", "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=24",
)  # fmt: skip
#: Figures that depend on the clock, or on which process they were taken in.
CLOCK = re.compile(r"^(timing|perf/|actor/perf/)")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.make_files(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def on(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("on")
    return train(
        files, folder, *ON, f"trainer.total_training_steps={STEPS}",
        f"trainer.rollout_data_dir={folder / 'trained'}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def shadow(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(
        files, tmp_path_factory.mktemp("shadow"), "arrol.mode=shadow", "trainer.test_freq=4",
        f"trainer.total_training_steps={STEPS}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def dapo(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Dynamic sampling, the paper's own rule, two servers and two data-parallel ranks."""
    return train(
        files, tmp_path_factory.mktemp("dapo"), "arrol.mode=on", "arrol.preset=paper",
        "algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        f"trainer.total_training_steps={STEPS}",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        "trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2",
    )  # fmt: skip


def rises(run: Run, name: str = "critic/score/mean") -> None:
    assert run.code == 0, run.log[-3000:]
    curve = run.curve(name)
    assert sum(curve[-2:]) / 2 > sum(curve[:2]) / 2 + 0.1, curve


def test_the_reward_rises_with_pruning(on: Run) -> None:
    rises(on)
    rises(on, "arrol/pass_rate")


def test_the_reward_rises_in_shadow_mode(shadow: Run) -> None:
    rises(shadow)


def test_the_reward_rises_with_dynamic_sampling(dapo: Run) -> None:
    rises(dapo, "arrol/pass_rate")


def test_half_of_the_rollouts_are_pruned_at_the_detection_length(on: Run) -> None:
    for step in range(3, STEPS + 1):
        rollouts = on.rollouts(step)
        assert len(rollouts) == BATCH * GROUP
        pruned = [r for r in rollouts if r["finish_reason"] == "pruned"]
        assert {r["tokens"] for r in pruned} == {DETECT}
        assert not any("outcome" in r or "reward" in r for r in pruned)
        assert 0.4 < len(pruned) / len(rollouts) < 0.6
        assert on.steps[step]["arrol/pruned"] == len(pruned)
    assert on.steps[1]["arrol/pruned"] == 0  # cold start


def test_a_group_keeps_what_its_survival_probabilities_add_up_to(on: Run) -> None:
    # Madow's systematic draw: the count kept is the sum, rounded up or down.
    groups = defaultdict(list)
    for row in on.rollouts(STEPS):
        if "detection" in row:
            groups[row["group"]].append(row["detection"])
    for decided in groups.values():
        total = sum(d["survival"] for d in decided)
        kept = sum(d["keep"] for d in decided)
        assert math.floor(total - 1e-9) <= kept <= math.ceil(total + 1e-9)


def test_only_survivors_are_trained_on(on: Run) -> None:
    for step in range(1, STEPS + 1):
        text = (on.folder / "trained" / f"{step}.jsonl").read_text()
        trained = Counter(json.loads(line)["uid"].rsplit("_", 1)[0] for line in text.splitlines())
        # verl's own dump holds the padding too, under names of its own.
        real = {name: n for name, n in trained.items() if not name.startswith("pad")}
        survivors = {
            f"{r['group']}_{r['index']}"
            for r in on.rollouts(step)
            if r["finish_reason"] != "pruned"
        }
        assert real == dict.fromkeys(survivors, 1)
        padding = sum(n for name, n in trained.items() if name.startswith("pad"))
        # At most one row short of a whole one for each mini-batch.
        assert padding == on.steps[step]["arrol/padding"] <= 1


def test_the_optimizer_makes_as_many_steps_as_configured(on: Run) -> None:
    path = on.folder / "ck" / f"global_step_{STEPS}" / "actor" / "optim_world_size_1_rank_0.pt"
    state = torch.load(path, weights_only=False)["state"]
    assert {int(entry["step"]) for entry in state.values()} == {STEPS * 2}  # 16 prompts in eights


def test_plans_and_weights_are_those_of_the_step(on: Run, dapo: Run) -> None:
    for run in (on, dapo):
        for step, metrics in run.steps.items():
            assert metrics["arrol/plan_version"] == step
            assert metrics["training/off_policy/trajectory_staleness/max"] == 0
            found = [r["detection"] for r in run.rollouts(step) if "detection" in r]
            assert found
            assert {d["version"] for d in found} == {step}
            for name in ("undecided", "stale", "orphans", "mismatched", "missing", "failed"):
                assert metrics[f"arrol/{name}"] == 0, name


def test_head_and_scores_come_with_the_first_labels(on: Run) -> None:
    assert not any("score" in row for row in on.rollouts(1))  # no head yet
    assert all("score" in row for row in on.rollouts(2) if "detection" in row)
    assert on.curve("arrol/head/version") == list(range(1, STEPS + 1))


def test_outcome_and_reward_are_kept_apart(on: Run) -> None:
    # The toy's reward takes a tenth off a long answer; its outcome doesn't.
    shaped = [r for s in range(1, STEPS + 1) for r in on.rollouts(s) if "reward" in r]
    assert {(round(r["reward"], 6), r["outcome"]) for r in shaped} == {
        (1.0, True), (0.9, True), (0.0, False), (-0.1, False),
    }  # fmt: skip


def test_shadow_decides_and_keeps_everything(shadow: Run) -> None:
    for step in shadow.steps:
        rollouts = shadow.rollouts(step)
        assert {r["finish_reason"] for r in rollouts} <= {"stop", "length"}
        assert not any(r["detection"]["enforced"] for r in rollouts if "detection" in r)
    last = [r["detection"] for r in shadow.rollouts(STEPS) if "detection" in r]
    assert {d["keep"] for d in last} == {True, False}


def test_validation_is_left_alone(shadow: Run) -> None:
    for step in (4, STEPS):
        accuracy = shadow.steps[step]["val-core/toy/acc/mean@1"]
        assert accuracy * 8 == round(accuracy * 8)  # the toy has 8 prompts to validate with
    # Its rollouts are none of the step's.
    assert shadow.steps[4]["arrol/rollouts"] == BATCH * GROUP == len(shadow.rollouts(4))


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


def test_a_killed_run_goes_on_as_if_it_had_not_been(on: Run, files: Path, tmp_path: Path) -> None:
    settings = (*ON, "trainer.resume_mode=auto", f"trainer.total_training_steps={STEPS}")
    # While the checkpoint of step 4 is written: ours is there, verl's is not yet.
    first = train(files, tmp_path, *settings, kill="_save_checkpoint:4")
    assert first.code != 0
    assert (tmp_path / "ck" / "global_step_4" / "arrol").is_dir()
    assert (tmp_path / "ck" / toy.MARKER).read_text() == "2"
    # Between the head's training and the advantages, with a whole checkpoint of step 4.
    second = train(files, tmp_path, *settings, kill="_compute_advantage:6")
    assert second.code != 0
    third = train(files, tmp_path, *settings)
    assert third.code == 0, third.log[-3000:]
    assert [sorted(run.steps) for run in (first, second, third)] == [[1, 2, 3], [3, 4, 5], [5, 6]]
    for run in (first, second, third):
        for step, metrics in run.steps.items():
            same_numbers(metrics, on.steps[step])
    for step in range(1, STEPS + 1):
        assert third.rollouts(step) == on.rollouts(step)
    for name in ("controller.json", "head_trainer.safetensors", "run.json"):
        parts = ("ck", f"global_step_{STEPS}", "arrol", name)
        assert tmp_path.joinpath(*parts).read_bytes() == on.folder.joinpath(*parts).read_bytes()


GREEDY = (
    # Always the likeliest token: verl's own seeds are one for all, or none. Rollouts of a prompt
    # are then alike, so advantages are taken over the batch.
    "actor_rollout_ref.rollout.top_k=1", "algorithm.adv_estimator=reinforce_plus_plus",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16", "trainer.total_training_steps=3",
)  # fmt: skip


def test_mode_off_is_plain_verl(files: Path, tmp_path: Path) -> None:
    off = train(files, tmp_path / "off", *GREEDY, "arrol.mode=off")
    plain = train(files, tmp_path / "plain", *GREEDY, program=(str(PLAIN),))
    assert (off.code, plain.code) == (0, 0), off.log[-2000:] + plain.log[-2000:]
    assert off.steps.keys() == plain.steps.keys() == {1, 2, 3}
    assert not any(name.startswith("arrol") for name in off.steps[1])
    for step, metrics in plain.steps.items():
        assert off.steps[step].keys() == metrics.keys()
        for name, value in metrics.items():
            if not CLOCK.match(name) and value is not None:
                # Rows come in the order in which they were done, which rounds sums differently.
                assert off.steps[step][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def same_numbers(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if not CLOCK.match(name):
            assert found[name] == value, name
