"""``arrol generate`` on a real engine: a shadow run, the head it makes, and runs with that head."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import vllm_settings  # noqa: F401  # before vLLM is imported
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm_models import save_random_qwen3

from arrol import PruningConfig, PruningController, cli
from arrol.adapters.vllm.command import generate
from arrol.head import QualityHead
from arrol.records import Detection
from arrol.rollout_log import read_rollouts

L_DETECT, MAX_TOKENS, GROUP_SIZE = 8, 24, 16
EOS, UNKNOWN = 300, 301
ENGINE = (
    "max_model_len=64",
    "max_num_seqs=128",
    "enforce_eager=true",
    "dtype=float32",
    "kv_cache_memory_bytes=134217728",
)


def save_model(folder: Path) -> Path:
    """A random Qwen3 each of whose tokens is an answer, of value 0 or 1: about half are right."""
    save_random_qwen3(folder)
    words = {f"\n#### {token % 2}.{'0' * (token // 2 + 1)}": token for token in range(EOS)}
    tokenizer = Tokenizer(
        models.WordLevel(vocab={**words, "<eos>": EOS, "<unk>": UNKNOWN}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((folder / name).read_text())
        values.update(eos_token_id=EOS, pad_token_id=None)
        (folder / name).write_text(json.dumps(values))
    return folder


def arrol(*arguments: object, width: int = 100) -> tuple[int, str, str]:
    """Run ``arrol generate`` in this process: exit code, stdout, stderr."""
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryFile("w+", encoding="utf-8") as printed,  # real files: vLLM asks for their numbers
        TemporaryFile("w+", encoding="utf-8") as errors,
    ):
        patch.setattr(cli.arrol, "get_command", lambda *_: generate)
        patch.setenv("COLUMNS", str(width))
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        with redirect_stdout(printed), redirect_stderr(errors):
            code = cli.run(["generate", *map(str, arguments)])
        texts = []
        for file in (printed, errors):
            file.seek(0)
            texts.append(file.read())
    return code, texts[0], texts[1]


@dataclass(frozen=True)
class Finished:
    """One run."""

    code: int
    text: str
    errors: str
    out: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The file's, in the order of prompts."""
        lines = self.out.read_text(encoding="utf-8").split("\n")[:-1]
        return sorted(map(json.loads, lines), key=lambda row: (row["group"], row["index"]))

    def value(self, name: str) -> str:
        """A figure of the table."""
        found = re.search(rf"^{name} +(≈ \S+|\S+)", self.text, re.MULTILINE)
        assert found is not None, self.text
        return found.group(1)

    @property
    def detections(self) -> list[Detection]:
        return [Detection.from_dict(r["detection"]) for r in self.rows if "detection" in r]


class Workplace:
    """A model, prompts, and runs of the command on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = save_model(folder / "model")
        self.prompts = folder / "prompts.jsonl"
        rows: list[Any] = [
            {"prompt": " ".join("abcdefgh"[: place + 1]), "answer": place % 2} for place in range(5)
        ]
        rows[1] = {"question": "a b", "answer": "so it is\n#### 1"}
        rows[2] = {"prompt": [{"role": "user", "content": "a b c"}], "answer": "0.0"}
        self.prompts.write_text("\n".join([*map(json.dumps, rows), "{broken"]) + "\n")

    def arguments(self, *more: object) -> list[object]:
        given = [word for pair in ENGINE for word in ("--engine", pair)]
        return ["--model", self.model, "--prompts", self.prompts, "--max-tokens", MAX_TOKENS,
                "--group-size", GROUP_SIZE, *given, *more]  # fmt: skip

    def run(self, name: str, *more: object, width: int = 100) -> Finished:
        out = self.folder / name
        return Finished(*arrol(*self.arguments("--out", out, *more), width=width), out)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("generate"))


@pytest.fixture(scope="module")
def head(place: Workplace) -> Path:
    return place.folder / "head"


@pytest.fixture(scope="module")
def first(place: Workplace, head: Path) -> Finished:
    return place.run(
        "first.jsonl",
        "--mode",
        "shadow",
        "--save-head",
        head,
        "--detect-length",
        L_DETECT,
        width=80,
    )


@pytest.fixture(scope="module")
def shadow(place: Workplace, head: Path, first: Finished) -> Finished:
    return place.run("shadow.jsonl", "--mode", "shadow", "--head", head)


@pytest.fixture(scope="module")
def on(place: Workplace, head: Path, first: Finished) -> Finished:
    return place.run("on.jsonl", "--mode", "on", "--head", head)


def test_a_first_run_makes_a_head_and_a_file_with_held_out_scores(
    first: Finished, head: Path
) -> None:
    assert first.code == 0, first.errors
    assert "prompts.jsonl:6: not JSON" in first.text
    table = first.text[first.text.index("figure") : first.text.index("Rollouts:")]
    assert max(map(len, table.split("\n"))) <= 80
    assert QualityHead.load(head).version == 1
    controller = PruningController()
    controller.load(head / "controller.json")
    log = read_rollouts([first.out])
    assert not log.problems.counts
    assert len(log) == 5 * GROUP_SIZE
    assert log.tokens.max() == MAX_TOKENS
    assert np.array_equal(np.isfinite(log.scores), log.tokens > L_DETECT)
    # Of random labels, scores that were not held out would say much more than chance.
    held_out = float(first.value("new head’s AUC"))
    assert controller.metrics["auc"] == pytest.approx(held_out, abs=5e-4)
    assert float(first.value("… on its own")) > held_out
    assert first.value("tokens saved") == "—"
    assert first.value("tokens generated") == f"{log.tokens.sum():,}"


@pytest.mark.parametrize("name", ["shadow", "on"])
def test_the_table_counts_what_the_file_holds(name: str, request: pytest.FixtureRequest) -> None:
    run: Finished = request.getfixturevalue(name)
    assert (run.code, len(run.rows)) == (0, 5 * GROUP_SIZE), run.errors
    assert run.value("rollouts") == f"{len(run.rows)}"
    for reason in ("stop", "length", "pruned", "failed"):
        count = sum(row["finish_reason"] == reason for row in run.rows)
        assert f"{count} {reason}" in run.text
    assert run.value("tokens generated") == f"{sum(row['tokens'] for row in run.rows):,}"
    # Those that ended before the detection length count as kept.
    kept = 1 - sum(not detection.keep for detection in run.detections) / len(run.rows)
    assert run.value("keep rate") == f"{kept:.3f}"
    graded = [row for row in run.rows if "outcome" in row]
    weights = [
        1 / row["detection"]["survival"] if name == "on" and "detection" in row else 1.0
        for row in graded
    ]
    assert "the head learned from 5 of these prompts" in " ".join(run.text.split())
    rate = np.average([row["reward"] for row in graded], weights=weights)
    assert run.value("pass rate") == f"{rate:.3f}"


def test_a_shadow_run_tells_exactly_what_pruning_saves(shadow: Finished, on: Finished) -> None:
    pruned = {(row["group"], row["index"]) for row in on.rows if row["finish_reason"] == "pruned"}
    assert 0 < len(pruned) < 5 * GROUP_SIZE
    for whole, cut in zip(shadow.rows, on.rows, strict=True):
        if (cut["group"], cut["index"]) in pruned:
            assert cut["tokens"] == L_DETECT
            assert whole["text"].startswith(cut["text"])
            assert not {"reward", "outcome"} & set(cut)
        else:
            assert cut["text"] == whole["text"]
            assert cut["outcome"] == whole["outcome"]
    tokens = [sum(row["tokens"] for row in run.rows) for run in (shadow, on)]
    assert shadow.value("tokens savable") == f"{tokens[0] - tokens[1]:,}"
    kept = [r["tokens"] - L_DETECT for r in on.rows if r["tokens"] > L_DETECT]
    assert on.value("tokens saved") == f"≈ {round(len(pruned) * np.mean(kept)):,}"


def test_decisions_are_those_of_the_saved_controller(on: Finished, head: Path) -> None:
    controller = PruningController(
        PruningConfig.balanced(detect_length=L_DETECT, cold_start_steps=0)
    )
    controller.load(head / "controller.json")
    again = controller.plan(QualityHead.load(head).version).replay(on.detections)
    assert again == on.detections


def test_outcomes_are_the_answers(on: Finished) -> None:
    """The tokenizer writes 0.0… and 1.0…; a rollout's answer is its last token's."""
    for row in on.rows:
        if "outcome" in row:
            last = float(row["text"].rsplit("####", 1)[1])
            assert row["outcome"] == (last == (row["group"] - 1) % 2), row["text"]


def test_a_file_of_a_run_that_pruned_is_read_without_its_pruned_rollouts(on: Finished) -> None:
    log = read_rollouts([on.out])
    assert not log.problems.counts
    pruned = sum(row["finish_reason"] == "pruned" for row in on.rows)
    assert log.left_out == {"pruned": pruned}
    assert len(log) == 5 * GROUP_SIZE - pruned


def refused(finished: tuple[int, str, str], text: str) -> None:
    code, _, errors = finished
    assert code == 2
    assert "Traceback" not in errors
    (line,) = [line for line in errors.split("\n") if line.startswith("arrol generate:")]
    assert text in line


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--engine", "max_model_length=9"], "an engine argument of vLLM (did you mean max_"),
        (["--engine", "worker_extension_cls=a.B"], "worker_extension_cls is 'a.B'"),
        (["--engine", "block_size=some"], "vLLM can't start with model"),
        (["--model", "no/such/model"], "--model is 'no/such/model', which is no folder"),
        (["--detect-length", "9"], "--detect-length is 9; allowed is 8"),
    ],
)  # fmt: skip
def test_what_vllm_can_not_do_is_one_sentence(
    place: Workplace, head: Path, first: Finished, more: list[str], text: str
) -> None:
    out = place.folder / "refused.jsonl"
    refused(arrol(*place.arguments("--out", out, "--mode", "on", "--head", head, *more)), text)
    assert not out.exists()


def test_a_head_for_another_model_is_refused(place: Workplace, head: Path, first: Finished) -> None:
    other = place.folder / "other"
    wrong = QualityHead(32)
    wrong.version = 1
    wrong.save(other)
    (other / "controller.json").write_bytes((head / "controller.json").read_bytes())
    out = place.folder / "refused.jsonl"
    finished = arrol(*place.arguments("--out", out, "--mode", "on", "--head", other))
    refused(finished, "for a model of hidden size 32; allowed is 64")
    assert not out.exists()
