"""Short training runs of the verl adapter on its CPU demo, larger than it, and their step times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from arrol.records import Mode

HERE = Path(__file__).resolve().parent
PHASES = {
    "generation": "gen",
    "log-prob": "old_log_prob",
    "update": "update_actor",
}
GROUP_SIZE = 8
PROMPT_LIMIT = 16  #: tokens
MICRO_ROWS = 32
BATCHED_TOKENS = 512
VOCABULARY = 128
HIDDEN, LAYERS, HEAD_DIM = 192, 4, 64


@dataclass(frozen=True)
class Sizes:
    """What the bench sets of verl's configuration.

    Attributes:
        groups: of GROUP_SIZE rollouts, in a full batch.
        longest: tokens of a rollout at most.
        slots: sequences that the engine runs at once.
        detect_length: L_detect [tokens].
        steps: of a run, the warm-up too.
        warm_up: steps that don't count.
    """

    groups: int
    longest: int
    slots: int
    detect_length: int
    steps: int
    warm_up: int


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        seconds: by phase; "rest" is the step without the others.
        overhead: what the adapter's own timers say [s], by name.
        share: of the batch's rows, that is trained on.
        padding: rows that were added to fill micro-batches, for each row trained on.
        tokens: trained on, prompts included, padding rows not.
        length: mean of the responses.
    """

    seconds: dict[str, float]
    overhead: dict[str, float]
    share: float
    padding: float
    tokens: float
    length: float

    @property
    def total(self) -> float:
        """Its wall time."""
        return sum(self.seconds.values())


def make_model(folder: Path) -> None:
    """A Qwen3 of random weights: every token is about as likely, the end of the text too.

    So lengths are geometric with a mean of about VOCABULARY before they are cut.
    """
    if (folder / "tokenizer.json").is_file():  # it is written last
        return
    import torch
    import transformers
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from arrol.adapters.verl.demo.model import make_tokenizer

    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        head_dim=HEAD_DIM, max_position_embeddings=1024, tie_word_embeddings=False,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, dtype="float32",
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight *= 0.1  # nearly the same logit for every token
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def settings(folder: Path, mode: Mode, sizes: Sizes, groups: int) -> list[str]:
    """Overrides of the demo's configuration."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        "demo=cpu",
        f"demo_dir={folder}",
        f"arrol.mode={mode.value}",
        "arrol.cold_start_steps=1",
        "arrol.guard.auc=0",
        f"arrol.detect_length={sizes.detect_length}",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"data.train_batch_size={groups}",
        f"data.max_prompt_length={PROMPT_LIMIT}",
        f"data.max_response_length={sizes.longest}",
        f"{actor}.ppo_mini_batch_size={groups}",
        f"{actor}.ppo_micro_batch_size_per_gpu={MICRO_ROWS}",
        f"{actor}.optim.lr=1e-9",  # the policy, so the lengths, stay as they are
        f"{rollout}.n={GROUP_SIZE}",
        f"{rollout}.log_prob_micro_batch_size_per_gpu={MICRO_ROWS}",
        f"{rollout}.max_model_len={PROMPT_LIMIT + sizes.longest}",
        f"{rollout}.max_num_batched_tokens={BATCHED_TOKENS}",
        f"{rollout}.max_num_seqs={sizes.slots}",
        f"reward.custom_reward_function.path={HERE / 'verl_hooks.py'}",
        f"trainer.total_training_steps={sizes.steps}",
        "trainer.logger=[file]",
    ]


def train(folder: Path, mode: Mode, sizes: Sizes, groups: int, name: str) -> list[Step]:
    """One run; its steps after the warm-up.

    Raises:
        SystemExit: it failed; the last lines of its log have been printed.
    """
    found, log = folder / f"{name}.jsonl", folder / f"{name}.log"
    found.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "VERL_FILE_LOGGER_PATH": str(found),
        "VERL_USE_EXTERNAL_MODULES": "verl_hooks",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-P", "-m", "arrol.adapters.verl_run"]
    with log.open("w") as stream:
        code = subprocess.run(
            [*command, *settings(folder, mode, sizes, groups)],
            stdout=stream, stderr=subprocess.STDOUT, env=environment, cwd=folder,
        ).returncode  # fmt: skip
    if code:
        print("\n".join(log.read_text().splitlines()[-20:]))
        raise SystemExit(f"run {name} ended with {code}; its log is {log}.")
    lines = [json.loads(line)["data"] for line in found.read_text().splitlines()]
    return [read_step(line, groups) for line in lines[sizes.warm_up :]]


def read_step(metrics: dict[str, Any], groups: int) -> Step:
    """What verl logged of one step."""
    taken = {name.removeprefix("timing_s/"): value for name, value in metrics.items()
             if name.startswith("timing_s/")}  # fmt: skip
    seconds = {phase: taken[name] for phase, name in PHASES.items()}
    seconds["rest"] = taken["step"] - sum(seconds.values())
    overhead = {name.removeprefix("arrol_"): value for name, value in taken.items()
                if name.startswith("arrol_")}  # fmt: skip
    share = metrics.get("arrol/keep_rate", 1.0)
    padding = metrics.get("arrol/padding", 0.0) / (share * groups * GROUP_SIZE)
    return Step(
        seconds, overhead, share, padding, metrics["perf/total_num_tokens"],
        metrics["response_length/mean"],
    )  # fmt: skip


def medians(steps: list[Step]) -> dict[str, float]:
    """Of the seconds by phase, and of the whole ("step")."""
    phases = {name: median(s.seconds[name] for s in steps) for name in steps[0].seconds}
    return {**phases, "step": median(s.total for s in steps)}
