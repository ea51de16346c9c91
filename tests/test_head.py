"""The quality head: against numpy, under permutation and splitting, and what it refuses to read."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrol.errors import ArrolError

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from arrol.head import QualityHead, default_width  # noqa: E402
from arrol.head_files import pack  # noqa: E402

H = 24
seeds = st.integers(0, 2**32)


def hidden_states(rows, seed=0, size=H):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


def trained(version=3):
    head = QualityHead(H, 4, seed=1)
    head.version = version
    return head


class TestScores:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    def test_logits_and_scores_are_those_of_numpy(self, dtype):
        head, hidden = QualityHead(H, 7, seed=5), hidden_states(50).to(dtype)
        w1, b1, w2, b2 = (p.detach().numpy().astype(np.float64) for p in head.parameters())
        x = hidden.double().numpy()
        logits = np.maximum(x @ w1.T + b1, 0.0) @ w2[0] + b2[0]
        assert head(hidden).dtype == torch.float32
        np.testing.assert_allclose(head(hidden).detach().numpy(), logits, atol=1e-5)
        scores = head.scores(hidden)
        assert scores.dtype == torch.float64
        np.testing.assert_allclose(scores.numpy(), 1.0 / (1.0 + np.exp(-logits)), atol=1e-6)

    @given(seeds, st.permutations(range(12)))
    def test_order_changes_no_score(self, seed, order):
        head, hidden = QualityHead(H), hidden_states(12, seed)
        moved = head.scores(hidden[order]).numpy()
        np.testing.assert_allclose(moved, head.scores(hidden).numpy()[list(order)], atol=1e-6)

    @given(seeds, st.lists(st.integers(0, 40), max_size=5))
    def test_splitting_a_batch_changes_no_score(self, seed, cuts):
        head, hidden = QualityHead(256), hidden_states(40, seed, size=256)
        ends = [0, *sorted(cuts), 40]
        sizes = np.diff(ends).tolist()
        parts = torch.cat([head.scores(part) for part in hidden.split(sizes)])
        np.testing.assert_allclose(parts.numpy(), head.scores(hidden).numpy(), atol=1e-6)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_bad_row_scores_nan_and_no_other_does(self, bad):
        head, hidden = QualityHead(H), hidden_states(6)
        before = head.scores(hidden)
        hidden[2, 5] = bad
        after = head.scores(hidden)
        assert torch.isnan(after[2])
        others = [0, 1, 3, 4, 5]
        assert torch.equal(after[others], before[others])

    def test_a_bad_row_that_no_unit_answers_to_scores_nan_too(self):
        head = QualityHead(H)
        head.hidden_layer.weight.data.fill_(1.0)
        bad = torch.full((1, H), -torch.inf)  # relu(-inf) is 0: the logit itself is finite
        assert torch.isfinite(head(bad)).all()
        assert torch.isnan(head.scores(bad)).all()

    def test_extreme_logits_stay_in_the_unit_interval(self):
        scores = QualityHead(H).scores(hidden_states(100) * 1e6)
        assert ((scores >= 0.0) & (scores <= 1.0)).all()

    def test_no_rows_give_no_scores(self):
        assert QualityHead(H).scores(torch.empty(0, H)).shape == (0,)

    def test_no_gradient_reaches_the_model(self):
        head, hidden = QualityHead(H), hidden_states(5).requires_grad_()
        head(hidden).sum().backward()
        assert hidden.grad is None
        assert all(parameter.grad is not None for parameter in head.parameters())
        assert not head.scores(hidden).requires_grad

    def test_autocast_has_no_effect(self):
        head, hidden = QualityHead(H), hidden_states(50)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = head(hidden)
        assert torch.equal(inside, head(hidden))

    @pytest.mark.parametrize("shape", [(H,), (3, H + 1), (2, 3, H)])
    def test_another_shape_is_refused(self, shape):
        with pytest.raises(ArrolError, match=r"hidden states have shape .* allowed is \[N, 24\]"):
            QualityHead(H).scores(torch.zeros(shape))

    def test_integers_are_refused(self):
        with pytest.raises(ArrolError, match="floating"):
            QualityHead(H).scores(torch.zeros(2, H, dtype=torch.int64))


class TestInitialWeights:
    def test_they_follow_from_the_seed_alone(self):
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = QualityHead(H, seed=9).to_bytes()
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        assert QualityHead(H, seed=9).to_bytes() == first
        assert QualityHead(H, seed=10).to_bytes() != first

    def test_they_are_float32_whatever_the_default(self):
        torch.set_default_dtype(torch.bfloat16)
        try:
            changed = QualityHead(H)
        finally:
            torch.set_default_dtype(torch.float32)
        assert changed.to_bytes() == QualityHead(H).to_bytes()

    def test_they_are_uniform_within_one_over_the_root_of_the_inputs(self):
        weights = QualityHead(400, 200).hidden_layer.weight.detach().numpy() * 20.0
        assert np.abs(weights).max() <= 1.0
        # Mean 0 and variance 1/3; five standard errors of 80,000 draws.
        assert abs(weights.mean()) < 5 * np.sqrt(1 / 3 / 80_000)
        assert abs((weights**2).mean() - 1 / 3) < 5 * np.sqrt(4 / 45 / 80_000)

    @pytest.mark.parametrize(("hidden_size", "width"), [(8, 16), (64, 16), (896, 224), (2048, 512)])
    def test_default_width(self, hidden_size, width):
        assert default_width(hidden_size) == width

    @pytest.mark.parametrize("values", [(0,), (8, 0), (8, 4, -1), (8.5,), (True,)])
    def test_sizes_outside_their_range_are_refused(self, values):
        with pytest.raises(ArrolError, match="allowed is an integer"):
            QualityHead(*values)


class TestBytesAndFiles:
    def test_the_way_there_and_back_keeps_every_bit(self, tmp_path):
        head, hidden = trained(), hidden_states(20)
        head.save(tmp_path / "run")
        for copy in (QualityHead.from_bytes(head.to_bytes()), QualityHead.load(tmp_path / "run")):
            assert (copy.hidden_size, copy.width, copy.version) == (H, 4, 3)
            assert torch.equal(copy.scores(hidden), head.scores(hidden))
            assert copy.to_bytes() == head.to_bytes()
        names = sorted(path.name for path in (tmp_path / "run").iterdir())
        assert names == ["head.json", "head.safetensors"]

    def test_the_json_says_what_it_is(self, tmp_path):
        trained().save(tmp_path)
        values = json.loads((tmp_path / "head.json").read_text())
        assert values == {"format": 1, "hidden_size": H, "width": 4, "version": 3}

    def test_other_programs_can_read_the_weights(self, tmp_path):
        from safetensors.numpy import load_file

        head = trained()
        head.save(tmp_path)
        weights = load_file(tmp_path / "head.safetensors")
        np.testing.assert_array_equal(
            weights["hidden_layer.weight"], head.hidden_layer.weight.detach().numpy()
        )

    def test_a_save_killed_between_its_files_leaves_a_head(self, tmp_path):
        trained(version=3).save(tmp_path)
        (tmp_path / "head.safetensors").write_bytes(trained(version=4).to_bytes())
        assert QualityHead.load(tmp_path).version == 4

    @pytest.mark.parametrize(
        "change", [{"width": 5}, {"hidden_size": 8}, {"version": 4}, {"version": -1}, {"format": 2}]
    )
    def test_json_of_another_head_is_refused(self, tmp_path, change):
        trained().save(tmp_path)
        values = json.loads((tmp_path / "head.json").read_text()) | change
        (tmp_path / "head.json").write_text(json.dumps(values))
        with pytest.raises(ArrolError, match=r"head\.json"):
            QualityHead.load(tmp_path)

    @pytest.mark.parametrize("text", ["", "[1]", "{}", "null", "\xff", "[" * 100_000])
    def test_damaged_json_is_refused(self, tmp_path, text):
        trained().save(tmp_path)
        (tmp_path / "head.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ArrolError, match=r"head\.json"):
            QualityHead.load(tmp_path)

    @pytest.mark.parametrize("name", ["head.safetensors", "head.json"])
    def test_a_missing_file_is_named(self, tmp_path, name):
        trained().save(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(ArrolError, match=name):
            QualityHead.load(tmp_path)

    def test_a_pickle_is_refused(self, tmp_path):
        torch.save(trained().state_dict(), tmp_path / "head.pt")
        for data in ((tmp_path / "head.pt").read_bytes(), pickle.dumps({"a": 1}), b""):
            with pytest.raises(ArrolError, match="the head can't be read"):
                QualityHead.from_bytes(data)

    @pytest.mark.parametrize("note", [{}, {"note": "[" * 100_000}, {"note": "{"}, {"note": "[1]"}])
    def test_safetensors_without_a_note_are_refused(self, note):
        from safetensors.torch import save

        with pytest.raises(ArrolError, match="the head"):
            QualityHead.from_bytes(save(dict(trained().state_dict()), note))

    @given(st.integers(0, 10_000))
    def test_a_file_cut_off_anywhere_is_refused(self, length):
        data = trained().to_bytes()
        with pytest.raises(ArrolError):
            QualityHead.from_bytes(data[: length % len(data)])

    @settings(max_examples=300)
    @given(st.integers(0, 700), st.integers(1, 255))
    def test_a_flipped_byte_is_refused_or_gives_another_head(self, place, change):
        data = bytearray(trained().to_bytes())
        data[place] ^= change
        try:
            head = QualityHead.from_bytes(bytes(data))
        except ArrolError:
            return
        assert head.to_bytes()

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_weights_that_are_not_finite_are_refused_both_ways(self, value):
        head = trained()
        data = bytearray(head.to_bytes())
        data[-4:] = np.float32(value).tobytes()
        with pytest.raises(ArrolError, match="NaN or an infinite"):
            QualityHead.from_bytes(bytes(data))
        head.logit_layer.bias.data.fill_(value)
        with pytest.raises(ArrolError, match=r"logit_layer\.bias holds a NaN or an infinite"):
            head.to_bytes()

    def test_tensors_of_another_shape_type_or_name_are_refused(self):
        note = {"format": 1, "hidden_size": H, "width": 4, "version": 0}
        weights = dict(QualityHead(H, 4).state_dict())
        bias = weights["hidden_layer.bias"]
        for wrong in (bias[:3], bias.half(), bias[:, None]):
            with pytest.raises(ArrolError, match=r"hidden_layer\.bias"):
                QualityHead.from_bytes(pack({**weights, "hidden_layer.bias": wrong}, note))
        with pytest.raises(ArrolError, match="allowed is"):
            QualityHead.from_bytes(pack({**weights, "more": bias.clone()}, note))
        with pytest.raises(ArrolError, match="allowed is"):
            QualityHead.from_bytes(pack({"hidden_layer.bias": bias}, note))
        with pytest.raises(ArrolError, match=r"hidden_layer\.weight"):
            QualityHead.from_bytes(pack(weights, note | {"hidden_size": 10**15}))

    @pytest.mark.parametrize("version", [-1, 1.5, None, 2**53])
    def test_a_version_that_is_no_count_is_refused(self, version):
        with pytest.raises(ArrolError, match="version"):
            trained(version=version).to_bytes()
