"""What ``arrol generate`` refuses before hours of generating are lost to it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from arrol.adapters.vllm.generate import RunSettings, check_settings
from arrol.adapters.vllm.prompts import Columns, Prompt, read_prompts
from arrol.adapters.vllm.rollout_file import check_out
from arrol.config import PruningConfig
from arrol.errors import ArrolError
from arrol.records import Mode


def test_what_no_tokenizer_or_file_takes_is_left_out(tmp_path: Path) -> None:
    """A lone surrogate, legal in JSON; a message with a date, legal in Parquet."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a \\ud800 b"}\n{"prompt": "fine"}\n', encoding="utf-8")
    prompts, problems = read_prompts(path, Columns(None, None, None), None)
    assert [p.content for p in prompts] == ["fine"]
    assert "lone surrogate (U+D800)" in problems.first[0].text
    frame = pd.DataFrame(
        {"prompt": [[{"role": "user", "content": "x", "when": pd.Timestamp("2020-01-01")}], None]}
    )
    frame.to_parquet(tmp_path / "p.parquet")
    with pytest.raises(ArrolError, match="a message that is no JSON"):
        read_prompts(tmp_path / "p.parquet", Columns(None, None, None), None)


@pytest.mark.parametrize("name", ["", "file", "file/sub"])
def test_a_head_that_could_not_be_saved_is_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    folder = tmp_path / name if name else Path("")
    config = PruningConfig(mode=Mode.SHADOW, detect_length=8, cold_start_steps=0)
    settings = RunSettings("m", tmp_path / "o", config, save_head=folder)
    with pytest.raises(ArrolError, match="--save-head"):
        check_settings(settings, [Prompt(1, "a", "b")], overwrite=False)


def test_rollouts_and_head_need_files_of_their_own(tmp_path: Path) -> None:
    config = PruningConfig(mode=Mode.SHADOW, detect_length=8, cold_start_steps=0)
    out = tmp_path / "h" / "controller.json"
    settings = RunSettings("m", out, config, save_head=tmp_path / "h")
    with pytest.raises(ArrolError, match="a file of --save-head"):
        check_settings(settings, [Prompt(1, "a", "b")], overwrite=True)


def test_a_hard_link_of_the_prompts_is_no_place_for_rollouts(tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "o.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    out.hardlink_to(prompts)
    with pytest.raises(ArrolError, match="the file of prompts"):
        check_out(out, prompts, overwrite=True)
