"""Training with pruning, and going on after a kill.

Each run is a process of its own, started as a user starts it: verl's loop with Ray, TransferQueue,
FSDP and vLLM's CPU engine.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
import verl_toy as toy
from verl_toy import BATCH, DETECT, GROUP, STEPS, Run, train

from arrol.adapters.verl.checkpoints import MARKER

#: Pruning with a reference model, which is cut into micro-batches of its own.
ON = (
    *toy.REPEATABLE, "arrol.mode=on", "trainer.save_freq=2",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=24",
)  # fmt: skip


@pytest.fixture(scope="module")
def on(toy_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("on")
    return train(
        toy_files, folder, *ON, f"trainer.total_training_steps={STEPS}",
        f"trainer.rollout_data_dir={folder / 'trained'}",
    )  # fmt: skip


def test_the_reward_rises_with_pruning(on: Run) -> None:
    toy.rises(on)
    toy.rises(on, "arrol/pass_rate")


def test_plans_and_weights_are_those_of_the_step(on: Run) -> None:
    toy.in_step(on)


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


def test_a_killed_run_goes_on_as_if_it_had_not_been(
    on: Run, toy_files: Path, tmp_path: Path
) -> None:
    settings = (*ON, "trainer.resume_mode=auto", f"trainer.total_training_steps={STEPS}")
    # While the checkpoint of step 4 is written: ours is there, verl's is not yet. The rollouts of
    # two steps that the last whole checkpoint does not know of are there as well.
    killed = train(toy_files, tmp_path, *settings, kill="_save_checkpoint:4")
    assert killed.code != 0
    assert (tmp_path / "ck" / "global_step_4" / "arrol").is_dir()
    assert (tmp_path / "ck" / MARKER).read_text() == "2"
    resumed = train(toy_files, tmp_path, *settings)
    assert resumed.code == 0, resumed.log[-3000:]
    assert [sorted(run.steps) for run in (killed, resumed)] == [[1, 2, 3], [3, 4]]
    for run in (killed, resumed):
        for step, metrics in run.steps.items():
            same_numbers(metrics, on.steps[step])
    for step in range(1, STEPS + 1):
        assert resumed.rollouts(step) == on.rollouts(step)
    for name in ("controller.json", "head_trainer.safetensors", "run.json"):
        parts = ("ck", f"global_step_{STEPS}", "arrol", name)
        assert tmp_path.joinpath(*parts).read_bytes() == on.folder.joinpath(*parts).read_bytes()


def same_numbers(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if not toy.CLOCK.match(name):
            assert found[name] == value, name
