"""The head trainer's state: an interrupted run continues as if it had not been."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from arrol.errors import ArrolError

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from arrol.head_config import HeadConfig  # noqa: E402
from arrol.head_files import pack  # noqa: E402
from arrol.head_trainer import HeadTrainer  # noqa: E402

H = 16
QUICK = HeadConfig(width=16, learning_rate=0.02, batch_size=64, epochs=2)


def linear_problem(rows, seed):
    hidden = torch.randn(rows, H, generator=torch.Generator().manual_seed(seed))
    return hidden, (hidden.sum(1) > 0.5).numpy().astype(float)


def observe_half_a_round(trainer):
    hidden, outcomes = linear_problem(30, 77)
    hidden[3, 4] = torch.nan
    trainer.observe(hidden, outcomes)


def state_bytes(trainer):
    return pack(**trainer.state_dict())


def run(trainer, rounds):
    metrics = []
    for round_ in rounds:
        hidden, outcomes = linear_problem(100, round_)
        trainer.observe(hidden, outcomes, np.linspace(0.1, 1.0, 100))
        metrics.append(trainer.train())
    return metrics


class TestResumption:
    @pytest.mark.parametrize("start", [0, 1, 3])
    def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(self, start, tmp_path):
        config = replace(QUICK, buffer_rows=250)
        whole, first = HeadTrainer(H, config), HeadTrainer(H, config)
        run(first, range(start))
        observe_half_a_round(first)
        first.save(tmp_path)
        resumed = HeadTrainer(H, config)
        resumed.load(tmp_path)
        run(whole, range(start))
        observe_half_a_round(whole)
        assert run(resumed, range(start, 5)) == run(whole, range(start, 5))
        assert state_bytes(resumed) == state_bytes(whole)

    def test_another_process_continues_with_the_same_bits(self, tmp_path):
        trainer = HeadTrainer(H)
        run(trainer, range(2))
        observe_half_a_round(trainer)
        trainer.save(tmp_path)
        code = (
            "import sys; from arrol.head_trainer import HeadTrainer\n"
            "trainer = HeadTrainer(16); trainer.load(sys.argv[1]); trainer.train()\n"
            "trainer.save(sys.argv[1])"
        )
        subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], check=True)
        trainer.train()
        assert (tmp_path / "head_trainer.safetensors").read_bytes() == state_bytes(trainer)

    def test_the_global_random_state_is_neither_read_nor_changed(self):
        results = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
            trainer = HeadTrainer(H, QUICK)
            run(trainer, range(2))
            assert torch.equal(torch.get_rng_state(), before[0])
            np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
            results.append(state_bytes(trainer))
        assert results[0] == results[1]

    def test_a_state_is_a_copy(self):
        trainer = HeadTrainer(H, QUICK)
        run(trainer, range(1))
        state = trainer.state_dict()
        kept = copy.deepcopy(state)
        run(trainer, range(1, 3))
        assert pack(**state) == pack(**kept)
        trainer.load_state_dict(state)
        run(trainer, range(1, 3))
        assert pack(**state) == pack(**kept)

    def test_a_smaller_buffer_keeps_the_newest_rows(self):
        trainer = HeadTrainer(H, QUICK)
        run(trainer, range(2))
        small = HeadTrainer(H, replace(QUICK, buffer_rows=30))
        small.load_state_dict(trainer.state_dict())
        rows = [one.state_dict()["tensors"]["rows.hidden_NH"] for one in (trainer, small)]
        assert torch.equal(rows[1], rows[0][-30:])


class TestDamage:
    def test_a_state_that_is_damaged_changes_nothing(self):
        trainer = HeadTrainer(H, QUICK)
        run(trainer, range(2))
        before = state_bytes(trainer)
        for part, name, value in [
            ("note", "format", 2),
            ("note", "steps", -1),
            ("note", "version", "3"),
            ("note", "random", {"bit_generator": "PCG64"}),
            ("note", "new_rows", -1),
            ("tensors", "head.hidden_layer.weight", torch.zeros(3, H)),
            ("tensors", "exp_avg.logit_layer.bias", torch.full((1,), torch.nan)),
            ("tensors", "rows.hidden_NH", torch.zeros(200, H)),
            ("tensors", "rows.outcomes_N", torch.full((200,), 0.5, dtype=torch.float64)),
            ("tensors", "rows.inclusion_N", torch.zeros(200, dtype=torch.float64)),
            ("tensors", "rows.scores_N", torch.zeros(199, dtype=torch.float64)),
        ]:
            for drop in (False, True):
                state = trainer.state_dict()
                state[part].pop(name)
                if not drop:
                    state[part][name] = value
                with pytest.raises(ArrolError, match="the head trainer's state is damaged"):
                    trainer.load_state_dict(state)
        assert state_bytes(trainer) == before

    def test_files_that_are_no_state_are_refused(self, tmp_path):
        path = tmp_path / "head_trainer.safetensors"
        trainer = HeadTrainer(H, QUICK)
        trainer.save(tmp_path)
        whole = path.read_bytes()
        with pytest.raises(ArrolError, match="damaged"):
            HeadTrainer(H + 1, QUICK).load(tmp_path)
        torch.save({"a": torch.zeros(3)}, path)
        for data in (path.read_bytes(), whole[:-1], whole[:100], b"", trainer.head.to_bytes()):
            path.write_bytes(data)
            with pytest.raises(ArrolError):
                trainer.load(tmp_path)
        path.unlink()
        with pytest.raises(ArrolError, match=r"head_trainer\.safetensors can't be read"):
            trainer.load(tmp_path)
