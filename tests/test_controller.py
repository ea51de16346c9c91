"""The controller: cold start, the closed loop, its memory."""

import json
import math

import numpy as np
import pytest

from arrol.config import PruningConfig
from arrol.controller import PruningController
from arrol.errors import ArrolError
from arrol.keys import stable_key
from arrol.records import DecisionReason, Detection, FinishReason, Mode, Request, Rollout
from arrol.seen_scores import within_group_variance
from arrol.survival import FeedbackRule, SurvivalStatus


class World:
    """A trainer's world in a few lines: prompts of different difficulty, a noisy score.

    Y ~ Bernoulli(θ), θ ~ Beta with the given mean; the score is a sigmoid of 1.2·Y plus unit
    noise (AUC .80); a share ``early`` ends before the detection length.
    """

    def __init__(self, rate, prompts=64, group_size=8, early=0.0, signal=1.2, seed=0):
        self.rng = np.random.default_rng(seed)
        self.rate, self.prompts, self.group_size = rate, prompts, group_size
        self.early, self.signal = early, signal
        self.seen = []

    def step(self, controller, number):
        plan = controller.plan()
        decider = plan.decider()
        rate = self.rate(number) if callable(self.rate) else self.rate
        thetas = self.rng.beta(3 * rate, 3 * (1 - rate), self.prompts)
        rollouts, outcomes = [], {}
        for g, theta in enumerate(thetas):
            group = stable_key("prompt", number, g)
            for i in range(self.group_size):
                key = stable_key("rollout", number, g, i)
                right = self.rng.random() < theta
                self.seen.append(right)
                score = 1 / (1 + math.exp(-(self.signal * right + self.rng.normal())))
                detection = None
                if self.rng.random() >= self.early:
                    request = Request(key, group, i, self.group_size)
                    detection = decider.decide_one(request, score)
                pruned = detection is not None and detection.pruned
                reason = FinishReason.PRUNED if pruned else FinishReason.STOP
                rollouts.append(Rollout(key, group, i, 512, reason, detection))
                if not pruned:
                    outcomes[key] = float(right)
        return controller.observe(rollouts, outcomes), rate


def drifting(step):
    return 0.15 + 0.5 * step / 200


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.7, drifting])
@pytest.mark.parametrize("early", [0.0, 0.2])
def test_closed_loop_of_200_steps(rate, early):
    """Realised keep rate within .01 of κ and the 1/p-weighted pass rate within .01 of the truth."""
    controller = PruningController(PruningConfig.balanced(keep_ratio=0.5))
    world = World(rate, early=early)
    metrics = []
    for number in range(200):
        step, _ = world.step(controller, number)
        metrics.append(step)
    pruning = metrics[20:]
    truth = np.mean(world.seen[20 * 64 * 8 :])
    assert abs(np.mean([m["keep_rate"] for m in pruning]) - 0.5) < 0.01
    assert abs(np.mean([m["pass_rate"] for m in pruning]) - truth) < 0.01


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.7])
def test_balanced_survivors_are_at_least_as_balanced_as_randomly_pruned_ones(rate):
    means = {}
    for preset in ("balanced", "random"):
        controller = PruningController(PruningConfig.preset(preset))
        world = World(rate, seed=5)
        steps = [world.step(controller, number)[0] for number in range(80)]
        means[preset] = np.mean([m["balance"] for m in steps[20:]])
    assert means["balanced"] >= means["random"]


def test_cold_start_keeps_everything_for_twenty_steps():
    controller = PruningController()
    world = World(0.4)
    for number in range(21):
        metrics, _ = world.step(controller, number)
        assert (metrics["keep_rate"] == 1.0) == (number < 20)


def test_without_labels_the_cold_start_goes_on():
    controller = PruningController(PruningConfig(cold_start_steps=0))
    plan = controller.plan()
    assert plan.calibration is None
    record = plan.decider().decide_one(Request(1, 1, 0, 8), 0.2)
    assert record.reason is DecisionReason.COLD_START


def test_plan_is_pure():
    controller = PruningController(PruningConfig(cold_start_steps=1))
    World(0.4).step(controller, 0)
    assert controller.plan() == controller.plan()
    assert controller.plan().version == 2
    assert isinstance(controller.plan().rule, FeedbackRule)


@pytest.mark.parametrize("preset", ["paper", "balanced", "random"])
def test_restart_at_any_step_gives_the_run_that_was_not_interrupted(preset, tmp_path):
    config = PruningConfig.preset(preset, cold_start_steps=2, buffer_rows=700)
    straight = PruningController(config)
    resumed = PruningController(config)
    worlds = World(0.4, prompts=16, seed=3), World(0.4, prompts=16, seed=3)
    for number in range(8):
        straight_metrics, _ = worlds[0].step(straight, number)
        metrics, _ = worlds[1].step(resumed, number)
        assert json.dumps(metrics) == json.dumps(straight_metrics)
        resumed.save(tmp_path / "controller.json")
        resumed = PruningController(config)
        resumed.load(tmp_path / "controller.json")
        assert resumed.plan() == straight.plan()


def test_guard_turns_pruning_into_shadow_while_scores_say_nothing():
    controller = PruningController(PruningConfig(cold_start_steps=1))
    blind, telling = World(0.4, signal=0.0), World(0.4, signal=1.5)
    for number in range(3):
        metrics, _ = blind.step(controller, number)
    assert metrics["auc"] < 0.55
    assert metrics["guard_active"] == 1.0
    assert controller.plan().mode is Mode.SHADOW
    for number in range(3, 30):
        metrics, _ = telling.step(controller, number)
    assert controller.plan().mode is Mode.ON
    assert metrics["keep_rate"] < 0.6


def test_kappa_out_of_reach_is_said_in_the_plan():
    for kappa, status in [(0.05, SurvivalStatus.BELOW_MIN), (0.95, SurvivalStatus.ABOVE_MAX)]:
        controller = PruningController(PruningConfig.paper(keep_ratio=kappa, cold_start_steps=0))
        World(0.4).step(controller, 0)
        assert controller.plan().status is status


def test_bad_scores_are_kept_and_counted_but_teach_nothing():
    controller = PruningController(PruningConfig(cold_start_steps=0))
    World(0.4).step(controller, 0)
    decider = controller.plan().decider()
    requests = [Request(i, 1, i, 8) for i in range(8)]
    records = [decider.decide_one(r, math.nan) for r in requests]
    rollouts = [Rollout(d.key, 1, d.index, 600, FinishReason.STOP, d) for d in records]
    before = controller.metrics["label_buffer"]
    metrics = controller.observe(rollouts, dict.fromkeys(range(8), 1.0))
    assert metrics["bad_scores"] == 8
    assert metrics["keep_rate"] == 1.0
    assert metrics["label_buffer"] == before


@pytest.mark.parametrize(("outcome", "word"), [(0.5, "0.5"), (2, "2"), ("yes", "'yes'")])
def test_outcome_that_is_none_is_named(outcome, word):
    rollout = Rollout(7, 1, 0, 10, FinishReason.STOP)
    with pytest.raises(ArrolError, match=f"outcome of rollout 7 is {word}; allowed is 0, 1"):
        PruningController().observe([rollout], {7: outcome})


def observations_to_refuse():
    stop, fail = FinishReason.STOP, FinishReason.FAILED
    good = Rollout(7, 1, 0, 10, stop)
    record = Detection(7, 1, 0, 8, 0, 0.5, 0.5, 0.5, True, DecisionReason.DRAW, 1, True)
    yield [Rollout(7, 1, 0, 10, fail)], {7: 1}, "though it is failed"
    yield [good], {8: 1}, "rollout 8 has outcome 1 though it is unknown"
    yield [good, good], {}, "1 rollouts share a key"
    for name, value in [("survival", 0.0), ("survival", math.nan), ("posterior", 7.0)]:
        broken = record._replace(**{name: value})
        yield [Rollout(7, 1, 0, 600, stop, broken)], {7: 1}, "allowed is a number"


@pytest.mark.parametrize(("rollouts", "outcomes", "message"), list(observations_to_refuse()))
def test_what_is_refused_leaves_no_trace(rollouts, outcomes, message):
    controller = PruningController(PruningConfig(cold_start_steps=0))
    World(0.4).step(controller, 0)
    before = json.dumps(controller.state_dict())
    with pytest.raises(ArrolError, match=message):
        controller.observe(rollouts, outcomes)
    assert json.dumps(controller.state_dict()) == before


def damaged_states():
    yield "[" * 100_000
    yield from ("", "{", "[]", "{}", "null", "\x00", '{"format": 2}', '{"format": 1, "labels": 3}')
    controller = PruningController(PruningConfig(cold_start_steps=0))
    World(0.4, seed=9).step(controller, 0)
    state = controller.state_dict()
    seen, labels = state["seen"], state["labels"]
    for name, wrong in [
        ("format", True),
        ("seen", {}),
        ("seen", {**seen, "scores": [None, *seen["scores"][1:]]}),
        ("seen", {**seen, "scores": [1.5, *seen["scores"][1:]]}),
        ("seen", {**seen, "groups": seen["groups"][1:]}),
        ("seen", {**seen, "groups": [-1, *seen["groups"][1:]]}),
        ("labels", {**labels, "outcomes": labels["outcomes"][1:]}),
        ("labels", {**labels, "inclusion": [0.0, *labels["inclusion"][1:]]}),
        ("early", 3),
        ("early", [[3, 2]]),
        ("early", [[0, 10**400]]),
        ("steps", "x"),
        ("steps", -1),
        ("steps", 1.5),
        ("steps", 10**400),
        ("metrics", 0),
    ]:
        yield json.dumps({**state, name: wrong})
        yield json.dumps({k: v for k, v in state.items() if k != name})


@pytest.mark.parametrize("content", list(damaged_states()))
def test_damaged_state_is_refused_with_a_sentence_and_nothing_changes(content, tmp_path):
    path = tmp_path / "state.json"
    path.write_text(content)
    controller = PruningController(PruningConfig(cold_start_steps=0))
    World(0.4).step(controller, 0)
    before = controller.plan()
    with pytest.raises(ArrolError):
        controller.load(path)
    assert controller.plan() == before


def test_within_group_variance_is_the_textbook_one():
    groups = np.array([1, 1, 2, 2, 2, 3], dtype=np.uint64)
    q = np.array([0.2, 0.4, 0.1, 0.4, 0.7, 0.9])
    # Sums of squares .02 and .18 about the means .3 and .4; 6 rows − 3 groups.
    assert abs(within_group_variance(q, groups) - 0.2 / 3) < 1e-15
    assert within_group_variance(q[:1], groups[:1]) == 0.0


def test_nothing_observed_is_fine():
    metrics = PruningController().observe([], {})
    assert metrics["rollouts"] == 0
    assert math.isnan(metrics["pass_rate"])
