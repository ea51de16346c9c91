"""Training of the head: one step by hand in numpy, problems with a known answer, resumption."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.errors import ArrolError

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from arrol.estimators import auc  # noqa: E402
from arrol.head import QualityHead  # noqa: E402
from arrol.head_files import pack  # noqa: E402
from arrol.head_metrics import score_metrics  # noqa: E402
from arrol.head_trainer import (  # noqa: E402
    HeadConfig,
    HeadTrainer,
    row_weights,
    stratified_order,
)

H = 16
QUICK = HeadConfig(width=16, learning_rate=0.02, batch_size=64, epochs=2)


def normal(rows, seed, size=H):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


def linear_problem(rows, seed):
    hidden = normal(rows, seed)
    return hidden, (hidden.sum(1) > 0.5).numpy().astype(float)


def xor_problem(rows, seed):
    hidden = normal(rows, seed)
    return hidden, ((hidden[:, 0] > 0) ^ (hidden[:, 1] > 0)).numpy().astype(float)


def noise_problem(rows, seed):
    return normal(rows, seed), (normal(rows, seed + 1, 1)[:, 0] > 0.5).numpy().astype(float)


def state_bytes(trainer):
    return pack(**trainer.state_dict())


class TestOneStepByHand:
    """A right row with weight 4 (capped 10) and a wrong one with weight 2, one full batch."""

    x = np.array([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]])
    y, p = np.array([1.0, 0.0]), np.array([0.1, 0.5])
    config = HeadConfig(width=5, max_weight=4.0, batch_size=2, epochs=1, seed=3)

    def by_hand(self):
        """Loss and weights after AdamW's first step, from the formulas."""
        w1, b1, w2, b2 = (
            value.detach().double().numpy() for value in QualityHead(3, 5, seed=3).parameters()
        )
        weights = np.array([4.0, 2.0]) / 3.0  # mean 1
        b2 = np.array([np.log(4.0 / 2.0)])  # the weighted log-odds
        units = self.x @ w1.T + b1
        active = np.maximum(units, 0.0)
        logits = active @ w2[0] + b2
        loss = np.mean(weights * (np.log1p(np.exp(logits)) - self.y * logits))
        error = weights * (1.0 / (1.0 + np.exp(-logits)) - self.y) / 2.0
        back = np.outer(error, w2[0]) * (units > 0.0)
        gradients = [back.T @ self.x, back.sum(0), (error @ active)[None], error.sum()[None]]
        lr, eps, decay = 1e-3, 1e-8, 0.01
        after = []
        for value, gradient in zip((w1, b1, w2, b2), gradients, strict=True):
            kept = value * (1.0 - lr * decay) if value.ndim == 2 else value
            after.append(kept - lr * gradient / (np.abs(gradient) + eps))
        return loss, after

    def test_loss_and_weights(self):
        trainer = HeadTrainer(3, self.config)
        trainer.observe(torch.tensor(self.x), self.y, self.p)
        metrics = trainer.train()
        loss, after = self.by_hand()
        assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
        assert metrics["version"] == trainer.head.version == 1
        for parameter, expected in zip(trainer.head.parameters(), after, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), expected, atol=2e-7)

    def test_the_bias_starts_at_the_log_odds_once(self):
        trainer = HeadTrainer(3, replace(self.config, learning_rate=1e-9))
        trainer.observe(torch.tensor(self.x), self.y, self.p)
        trainer.train()
        trainer.observe(torch.tensor(self.x), [1.0, 1.0])  # other log-odds from here
        trainer.train()
        assert trainer.head.logit_layer.bias.item() == pytest.approx(np.log(2.0), abs=1e-6)


class TestLearning:
    @pytest.mark.parametrize("problem", [linear_problem, xor_problem])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_it_learns_what_can_be_learned(self, problem, dtype):
        trainer = HeadTrainer(H, QUICK)
        for round_ in range(8):
            hidden, outcomes = problem(256, round_)
            trainer.observe(hidden.to(dtype), outcomes)
            trainer.train()
        hidden, outcomes = problem(2_000, 99)
        assert auc(trainer.head.scores(hidden.to(dtype)).numpy(), outcomes) > 0.95
        assert trainer.head.version == 8

    def test_a_linear_head_could_not_learn_the_second_problem(self):
        hidden, outcomes = xor_problem(2_000, 99)
        features = np.column_stack([hidden.numpy(), np.ones(2_000)])
        best = np.linalg.lstsq(features, outcomes, rcond=None)[0]
        assert auc(features @ best, outcomes) < 0.6

    @pytest.mark.parametrize("seed", [0, 1000, 2000])
    def test_noise_teaches_nothing(self, seed):
        trainer = HeadTrainer(H, replace(QUICK, seed=seed))
        rounds = []
        for round_ in range(6):
            trainer.observe(*noise_problem(256, seed + 10 * round_))
            rounds.append(trainer.train()["auc"])
        hidden, outcomes = noise_problem(4_000, seed + 500)
        right = outcomes.sum()
        # Variance of the Mann-Whitney statistic without a signal.
        error = np.sqrt(4_001 / (12 * right * (4_000 - right)))
        assert abs(auc(trainer.head.scores(hidden).numpy(), outcomes) - 0.5) < 4 * error
        # The rows' own scores were made before they were learned, so they show none either.
        assert abs(np.mean(rounds) - 0.5) < 4 * np.sqrt(257 / (12 * 79 * 177) / 6)

    @pytest.mark.parametrize(
        ("right", "inclusion", "cap"), [(5, 1, 10), (30, 0.2, 10), (30, 0.2, 3)]
    )
    def test_without_a_signal_the_score_is_the_weighted_share(self, right, inclusion, cap):
        """All hidden states alike: the minimum of Σ w·BCE is σ(logit) = Σ wY / Σ w, by hand."""
        config = replace(QUICK, max_weight=cap, weight_decay=0.0, epochs=300, batch_size=100)
        trainer = HeadTrainer(H, config)
        outcomes = np.arange(100) < right
        trainer.observe(torch.ones(100, H), outcomes, np.where(outcomes, inclusion, 1.0))
        trainer.train()
        weight = min(1 / inclusion, cap)
        share = right * weight / (right * weight + 100 - right)
        assert trainer.head.scores(torch.ones(1, H)).item() == pytest.approx(share, abs=0.01)

    def test_weights_are_capped_and_have_mean_one(self):
        weights = row_weights(np.array([1.0, 0.5, 0.1]), 4.0)
        np.testing.assert_allclose(weights, np.array([1.0, 2.0, 4.0]) * 3 / 7)
        assert row_weights(np.array([0.1, 1.0]), 1.0).tolist() == [1.0, 1.0]


class TestRounds:
    @pytest.mark.parametrize("outcome", [0, 1])
    def test_a_round_with_one_class_changes_nothing(self, outcome):
        trainer = HeadTrainer(H, QUICK)
        before = trainer.head.to_bytes()
        trainer.observe(normal(20, 0), np.full(20, outcome))
        metrics = trainer.train()
        assert trainer.head.to_bytes() == before
        assert metrics["version"] == 0.0
        assert all(np.isnan(metrics[name]) for name in ("loss", "auc", "spearman"))
        trainer.observe(normal(20, 1), np.full(20, 1 - outcome))
        assert trainer.train()["version"] == 1.0

    def test_a_round_without_rows_changes_nothing(self):
        trainer = HeadTrainer(H, QUICK)
        before = trainer.head.to_bytes()
        metrics = trainer.train()
        assert trainer.head.to_bytes() == before
        assert metrics["rows"] == metrics["buffer_rows"] == 0.0
        assert np.isnan(metrics["brier"])

    def test_bad_rows_are_skipped_and_counted(self):
        hidden, outcomes = linear_problem(40, 0)
        clean = HeadTrainer(H, QUICK)
        clean.observe(hidden[5:], outcomes[5:])
        hidden[:5, 3] = torch.tensor([np.nan, np.inf, -np.inf, np.nan, np.inf])
        trainer = HeadTrainer(H, QUICK)
        trainer.observe(hidden, outcomes)
        metrics, same = trainer.train(), clean.train()
        assert (metrics.pop("skipped_rows"), same.pop("skipped_rows")) == (5.0, 0.0)
        assert metrics == same
        assert trainer.head.to_bytes() == clean.head.to_bytes()
        assert trainer.train()["skipped_rows"] == 0.0

    def test_values_beyond_float16_are_kept_at_its_end(self):
        trainer = HeadTrainer(H, QUICK)
        hidden, outcomes = linear_problem(40, 0)
        hidden[7, 2] = -1e9
        trainer.observe(hidden, outcomes)
        assert trainer.state_dict()["tensors"]["rows.hidden_NH"][7, 2] == -65504.0
        assert trainer.train()["skipped_rows"] == 0.0
        assert trainer.head.to_bytes()  # refuses a weight that is not finite

    @given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 12))
    def test_the_buffer_holds_the_newest_rows_in_order(self, sizes, capacity):
        trainer = HeadTrainer(2, HeadConfig(buffer_rows=capacity))
        everything = np.arange(sum(sizes)) / 64.0
        for part in np.split(everything, np.cumsum(sizes)[:-1]) if sizes else []:
            hidden = torch.tensor(np.stack([part, -part], axis=1))
            trainer.observe(hidden, np.zeros(len(part)), scores_N=part)
        tensors = trainer.state_dict()["tensors"]
        newest = everything[-capacity:]
        np.testing.assert_array_equal(tensors["rows.scores_N"].numpy(), newest)
        np.testing.assert_array_equal(tensors["rows.hidden_NH"][:, 1].numpy(), -newest)
        assert tensors["rows.hidden_NH"].dtype == torch.float16
        assert trainer.train()["rows"] == len(newest)

    def test_it_trains_where_gradients_are_off_and_on_inference_tensors(self):
        hidden, outcomes = linear_problem(40, 0)
        plain, other = HeadTrainer(H, QUICK), HeadTrainer(H, QUICK)
        plain.observe(hidden, outcomes)
        plain.train()
        with torch.inference_mode():
            hidden = hidden * 1.0
        other.observe(hidden, outcomes)
        with torch.no_grad():
            other.train()
        assert other.head.to_bytes() == plain.head.to_bytes()

    @given(st.lists(st.booleans(), max_size=60), st.integers(0, 1000))
    def test_every_run_of_rows_holds_its_share_of_right_ones(self, right, seed):
        outcomes = np.array(right, float)
        order = stratified_order(outcomes, np.random.default_rng(seed))
        assert sorted(order) == list(range(len(right)))
        seen = np.concatenate([[0.0], np.cumsum(outcomes[order])])
        for start in range(len(right)):
            for end in range(start, len(right)):
                expected = (end - start) * outcomes.mean()
                assert abs(seen[end] - seen[start] - expected) <= 1.0 + 1e-9

    def test_the_order_is_random_between_and_within_classes(self):
        """One right row among three wrong ones, u against (j + v)/3: 1/6, 1/3, 1/3, 1/6."""
        rng, draws = np.random.default_rng(0), 6_000
        orders = np.array([stratified_order(np.array([0, 1, 0, 0.0]), rng) for _ in range(draws)])
        right = np.array([1, 2, 2, 1]) / 6
        for row in range(4):
            shares = (orders == row).mean(axis=0)
            expected = right if row == 1 else (1 - right) / 3
            np.testing.assert_allclose(shares, expected, atol=4 * np.sqrt(2 / 9 / draws))


class TestMetrics:
    def test_they_are_of_the_scores_made_before_the_outcome_was_seen(self):
        trainer = HeadTrainer(H, QUICK)
        hidden, outcomes = linear_problem(200, 0)
        own = trainer.head.scores(hidden).numpy()
        trainer.observe(hidden, outcomes)
        assert trainer.train()["auc"] == auc(own, outcomes)
        given_scores = np.random.default_rng(0).random(200)
        own = trainer.head.scores(hidden).numpy()
        given_scores[:50] = np.nan  # these are scored by the head as it is
        mixed = np.where(np.isnan(given_scores), own, given_scores)
        inclusion = np.linspace(0.1, 1.0, 200)
        trainer.observe(hidden, outcomes, inclusion, given_scores)
        metrics = trainer.train()
        assert metrics["auc"] == auc(mixed, outcomes)
        assert metrics["auc_weighted"] == auc(mixed, outcomes, 1 / inclusion)
        assert metrics["rows"] == 200.0
        assert metrics["buffer_rows"] == 400.0

    def test_values_by_hand(self):
        scores, outcomes = np.array([0.9, 0.6, 0.4, 0.2]), np.array([1.0, 0.0, 1.0, 0.0])
        metrics = score_metrics(scores, outcomes, np.array([0.5, 1.0, 0.25, 1.0]))
        # Weights 2, 1, 4, 1. Right above wrong: all but the pair (.4, .6).
        assert metrics["auc"] == pytest.approx(3 / 4)
        assert metrics["auc_weighted"] == pytest.approx((2 + 2 + 4) / (6 * 2))
        assert metrics["accuracy"] == pytest.approx((2 + 1) / 8)
        squares = 2 * 0.01 + 0.36 + 4 * 0.36 + 0.04
        assert metrics["brier"] == pytest.approx(squares / 8)
        assert metrics["calibration_error"] == pytest.approx((2 * 0.1 + 0.6 + 4 * 0.6 + 0.2) / 8)
        # Ranks 4 3 2 1 against 3.5 1.5 3.5 1.5: covariance 1/2, variances 5/4 and 1.
        assert metrics["spearman"] == pytest.approx(0.5 / np.sqrt(1.25))


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("width", 0),
            ("learning_rate", 0.0),
            ("weight_decay", -0.1),
            ("batch_size", 0),
            ("epochs", 1.5),
            ("buffer_rows", 0),
            ("max_weight", 0.5),
            ("seed", -1),
        ],
    )
    def test_a_setting_outside_its_range_is_named(self, name, value):
        with pytest.raises(ArrolError, match=f"^{name} is {value}"):
            HeadConfig(**{name: value})

    def test_every_setting_matters(self):
        changes = {"width": 8, "learning_rate": 0.01, "weight_decay": 0.5, "batch_size": 30}
        changes |= {"epochs": 3, "buffer_rows": 90, "max_weight": 2.0, "seed": 1}
        assert set(changes) == set(asdict(HeadConfig()))
        results = set()
        for change in [{}, *({name: value} for name, value in changes.items())]:
            trainer = HeadTrainer(H, replace(QUICK, **change))
            hidden, outcomes = linear_problem(100, 0)
            trainer.observe(hidden, outcomes, np.linspace(0.1, 1.0, 100))
            trainer.train()
            results.add(trainer.head.to_bytes())
        assert len(results) == len(changes) + 1

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (([0, 2, 1],), r"outcomes\[1\] is 2.0"),
            (([0, 1],), "outcomes has 2 rows"),
            (([0, 1, 1], [0.5, 0.0, 1.0]), r"inclusion\[1\] is 0.0"),
            (([0, 1, 1], None, [0.5]), "scores has 1 rows"),
        ],
    )
    def test_wrong_columns_are_named_and_nothing_is_taken_in(self, columns, message):
        trainer = HeadTrainer(H, QUICK)
        with pytest.raises(ArrolError, match=message):
            trainer.observe(normal(3, 0), *columns)
        assert state_bytes(trainer) == state_bytes(HeadTrainer(H, QUICK))
