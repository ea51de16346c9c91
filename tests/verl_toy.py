"""Real training runs on a toy task: a random model learns to prefer letters with an even code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BATCH, GROUP, DETECT, STEPS = 16, 8, 6, 4
OVERRIDES = (
    "demo=cpu",
    f"data.train_batch_size={BATCH}",
    "data.max_response_length=24",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64",
    "actor_rollout_ref.actor.optim.lr=3e-3",
    f"reward.custom_reward_function.path={Path(__file__).with_name('verl_toy_reward.py')}",
    f"arrol.detect_length={DETECT}",
    "arrol.cold_start_steps=1",
    "trainer.logger=[console,file]",
)
#: Figures that depend on the clock, or on which process they were taken in.
CLOCK = re.compile(r"^(timing|perf/|actor/perf/)")
#: What makes a run repeatable; verl's own switches.
REPEATABLE = (
    "actor_rollout_ref.rollout.full_determinism=true",
    "actor_rollout_ref.actor.fsdp_config.full_determinism=true",
)


@dataclass(frozen=True)
class Run:
    """A finished run, or one that was killed.

    Attributes:
        code: exit code.
        steps: verl's metrics by step.
        folder: its checkpoints (``ck``) and rollouts (``rollouts``).
        log: everything that was printed.
    """

    code: int
    steps: dict[int, dict[str, Any]]
    folder: Path
    log: str

    def curve(self, name: str) -> list[float]:
        """A metric along the steps."""
        return [self.steps[step][name] for step in sorted(self.steps)]

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        """Every rollout of a step."""
        text = (self.folder / "rollouts" / f"{step}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def make_files(folder: Path) -> Path:
    """Model and prompts."""
    import pandas as pd

    from arrol.adapters.verl.demo.model import make_model, make_tokenizer

    make_model(7).save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    rows = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": f"{i}"}],
            "ability": "toy",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": i},
        }
        for i in range(512)
    ]
    pd.DataFrame(rows).to_parquet(folder / "train.parquet")
    pd.DataFrame(rows[:8]).to_parquet(folder / "val.parquet")
    return folder


def train(
    files: Path,
    folder: Path,
    *overrides: str,
    kill: str = "",
    program: tuple[str, ...] = ("-m", "arrol.adapters.verl_run"),
) -> Run:
    """Train as a user does, from the command line.

    Args:
        files: what :func:`make_files` made.
        folder: of this run; a second run in it goes on from the first's checkpoint.
        overrides: more settings.
        kill: METHOD:STEP of verl's trainer before which the trainer's process is killed, see
            verl_kill.py.
        program: what Python runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics, log = folder / "metrics.jsonl", folder / "log.txt"
    words = [
        *OVERRIDES,
        f"demo_dir={files / 'demo'}",
        f"actor_rollout_ref.model.path={files / 'model'}",
        f"data.train_files={files / 'train.parquet'}",
        f"data.val_files={files / 'val.parquet'}",
        f"trainer.default_local_dir={folder / 'ck'}",
        f"arrol.rollouts={folder / 'rollouts'}",
        *overrides,
    ]
    environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(metrics)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if kill:
        environment["ARROL_TEST_KILL"] = kill
        environment["VERL_USE_EXTERNAL_MODULES"] = "verl_kill"
        environment["PYTHONPATH"] = str(Path(__file__).parent)
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-P", *program, *words],
            stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder, check=False,
        )  # fmt: skip
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    steps = {entry["step"]: entry["data"] for entry in map(json.loads, lines)}
    return Run(done.returncode, steps, folder, log.read_text())


def rises(run: Run, name: str = "critic/score/mean") -> None:
    """The last steps' figure is above the first ones'."""
    assert run.code == 0, run.log[-3000:]
    curve = run.curve(name)
    assert sum(curve[-2:]) / 2 > sum(curve[:2]) / 2 + 0.1, curve


def in_step(run: Run) -> None:
    """Plans, heads and weights are those of the step, and every decision is accounted for."""
    for step, metrics in run.steps.items():
        assert metrics["arrol/plan_version"] == step
        assert metrics["training/off_policy/trajectory_staleness/max"] == 0
        found = [r["detection"] for r in run.rollouts(step) if "detection" in r]
        assert found
        assert {d["version"] for d in found} == {step}
        for name in ("undecided", "stale", "orphans", "mismatched", "missing", "failed"):
            assert metrics[f"arrol/{name}"] == 0, name
