"""``python -m arrol.adapters.verl_run``: help, configuration, recipes, mistakes, launch."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("verl", reason="verl is not installed")

import verl.trainer.main_ppo as main_ppo
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from ray.exceptions import RayTaskError
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager

from arrol.adapters.verl import command
from arrol.adapters.verl.checkpoints import MARKER
from arrol.adapters.verl.composition import HERE, compose_config
from arrol.adapters.verl.demo import processes
from arrol.adapters.verl.settings import Settings
from arrol.errors import ArrolError
from arrol.records import Mode

RECIPES = sorted(path.stem for path in (HERE / "recipes").glob("[!_]*.yaml"))
PAPER = [name for name in RECIPES if name != "dr_grpo"]
BASE = "grpo_qwen3_1.7b_base"
MODELS = {
    "qwen3_1.7b_base": "Qwen/Qwen3-1.7B-Base",
    "qwen3_4b_base": "Qwen/Qwen3-4B-Base",
    "qwen3_8b_base": "Qwen/Qwen3-8B-Base",
    "llama3.2_1b_instruct": "meta-llama/Llama-3.2-1B-Instruct",
}


def run(*arguments, code=""):
    """Run the command in a process of its own."""
    python = [sys.executable, "-P"]
    start = [*python, "-c", code] if code else [*python, "-m", "arrol.adapters.verl_run"]
    return subprocess.run(
        [*start, *arguments], capture_output=True, text=True, encoding="utf-8", timeout=300
    )


@pytest.fixture
def data(tmp_path):
    """Overrides that name data files which are there."""
    file = tmp_path / "data.parquet"
    pd.DataFrame({"prompt": ["one"] * 2048}).to_parquet(file)
    return [f"data.train_files={file}", f"data.val_files={file}"]


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """What ``run_ppo`` is called with, in place of a training."""
    # The CPU build has another name than the one that verl asks for; the demo gives it that name.
    processes._write_metadata(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = []
    monkeypatch.setattr(
        main_ppo,
        "run_ppo",
        lambda config, task_runner_class: calls.append((config, task_runner_class)),
    )
    return calls


# Light imports


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--print-config"], ["arrol.keep_ratio=2"], ["trainer.loger=x"], ["recipes=x"],
     ["algorithm.adv_estimator=gae"]],
)  # fmt: skip
def test_nothing_heavy_is_imported_for_help_or_a_mistake(arguments):
    result = run(
        *arguments,
        code="import sys; from arrol.adapters.verl.command import main; main(); "
        "print('HEAVY', sorted({'torch', 'ray', 'vllm', 'verl'} & set(sys.modules)))",
    )
    assert result.stdout.endswith("HEAVY []\n")


# Help and configuration


def test_the_help_fits_80_columns_and_has_every_key():
    text = command.help_text()
    place = str(HERE / "recipes")
    assert all(len(line) <= 80 for line in text.splitlines() if place not in line)
    assert place in text
    assert all(name in text for name in RECIPES)
    assert text.count("python -m arrol.adapters.verl_run recipes=") == 3
    group = OmegaConf.create(text[text.index("\narrol:") :])
    assert group.arrol == compose_config().arrol


def test_every_key_of_the_group_has_a_comment():
    lines = (HERE / "verl_run.yaml").read_text(encoding="utf-8").splitlines()
    lines = lines[lines.index("arrol:") :]
    for before, line in pairwise(lines):
        if re.match(r" +\w+:", line):
            assert before.strip(), f"nothing above {line!r}"


def test_what_is_printed_reads_back():
    overrides = [f"recipes={BASE}", "arrol.keep_ratio=0.3", "+trainer.mine=1"]
    result = run("--print-config", *overrides)
    assert result.returncode == 0
    assert OmegaConf.create(result.stdout) == compose_config(overrides)
    assert "mode: 'on'" in result.stdout


def test_a_part_is_printed_under_its_name(capsys):
    assert command.main(["--print-config", "arrol", "arrol.seed=4"]) == 0
    assert OmegaConf.create(capsys.readouterr().out) == {
        "arrol": compose_config(["arrol.seed=4"]).arrol
    }
    assert command.main(["arrol.mode=off", "--print-config", "arrol.mode"]) == 0
    assert capsys.readouterr().out == "arrol:\n  mode: 'off'\n"
    assert command.main(["--print-config", "trainer.loger"]) == 2
    assert "such as trainer.logger." in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error():
    line = f"{sys.executable} -P -m arrol.adapters.verl_run --print-config | head -1"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300)
    assert result.stderr == ""


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["arrol.keep_ratio=abc"], r"arrol\.keep_ratio is 'abc'; allowed is a number above 0"),
        (["arrol.keepratio=.4"], r"arrol\.keepratio is no setting; .* arrol\.keep_ratio"),
        (["data.trainfiles=a"], r"data\.trainfiles is no setting; .* data\.train_files"),
        (["+arrol.mode=off"], r"\+arrol\.mode adds a key that is there; allowed is arrol\.mode="),
        ([f"recipe={BASE}"], r"recipe is no setting; the nearest is recipes"),
        (["arrol.head={widht: 8}"], r"arrol\.head\.widht is no setting; .* arrol\.head\.width"),
        (["+arrol.zebra=1"], r"arrol\.zebra is no setting; allowed is what --print-config prints"),
        (["keep_ratio"], r"'keep_ratio' is no override; allowed is key=value"),
        (["arrol.keep_ratio=["], r"'arrol\.keep_ratio=\[' is no override"),
        (["arrol.seed=${a.b}"], r"arrol\.seed can't be read: Interpolation key 'a\.b' not found"),
        (["recipes=grpo"], rf"recipes is grpo; allowed is one of {', '.join(RECIPES)}"),
        (["data=mine"], r"data is mine; allowed is one of legacy_data"),
        (["hydra.searchpath=[file:///none]"], r"hydra\.searchpath is file:///none; allowed are"),
        (["recipes=[grpo]"], rf"recipes is grpo; allowed is one of {', '.join(RECIPES)}"),
        (["recipes=[null]"], r"can't be composed"),
        (["arrol.mode=${nope}"], r"arrol\.mode .*can't be read"),
        (["demo=cpu", "~demo_dir"], r"demo_dir is None; allowed is a folder"),
        (["demo=cpu", "demo_dir='a:b'"], r"demo_dir is 'a:b'; allowed is a folder without ':'"),
        (["demo=cpu", "arrol.min_survivors=16"], r"arrol\.min_survivors is 16; allowed is less"),
        (["demo=cpu", "actor_rollout_ref.actor.ppo_mini_batch_size=24"],
         r"ppo_mini_batch_size is 24; allowed"),
        (["arrol.keep_ratio=.4,.6"], r"'arrol\.keep_ratio=\.4,\.6' is a sweep .* allowed is one"),
        (["arrol.seed=range(1,3)"], r"'arrol\.seed=range\(1,3\)' is a sweep"),
        (["demo=cpu", "+actor_rollout_ref.rollout.engine_kwargs.vllm.logits_processors=a.b"],
         r"logits_processors is 'a\.b'; allowed is a list"),
        (["--multirun"], r"--multirun is no option; allowed are --help"),
        (["arrol.mode=off", "actor_rollout_ref.model.path=./none"], r"model\.path is '\./none'"),
        ([f"recipes={BASE}"], r"data\.train_files is 'data/dapo-math-17k\.parquet'; allowed"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(arguments, said, capsys, launched):
    assert command.main(arguments) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(rf"verl_run: .*{said}.*\.\n", printed.err)
    assert printed.out == ""
    assert not launched


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.train_files={folder}", r"data\.train_files is '.*'; allowed is a file that exists"),
        ("data.val_files=[]", r"data\.val_files is None; allowed"),
        ("trainer.resume_mode=often", r"trainer\.resume_mode is 'often'; allowed is auto, disable"),
        ("reward.custom_reward_function.path=/none.py", r"custom_reward_function\.path is '/none"),
        ("arrol.rollouts=/proc/x", r"arrol\.rollouts is '/proc/x'; allowed is a folder"),
        (
            "data.train_files={folder}/few.parquet",
            r"train_files has 2 prompts; allowed is at least",
        ),
        ("data.val_files={folder}/bad.parquet", r"val_files is .* without the column 'prompt'"),
        ("data.val_files={folder}/none.parquet", r"val_files is .* allowed is a Parquet file"),
        ("actor_rollout_ref.model.path={folder}", r"model\.path is .* without config\.json"),
        (
            "trainer.logger=[console,wandbb]",
            r"trainer\.logger is 'wandbb'; allowed is one of .*wandb",
        ),
        ("trainer.save_freq=often", r"trainer\.save_freq is 'often'; allowed"),
        (
            "actor_rollout_ref.rollout.tensor_model_parallel_size=3",
            r"is 3; allowed is what divides",
        ),
        ("arrol.rollouts={folder}/data.parquet", r"arrol\.rollouts is '.*'; allowed is a folder"),
        ("actor_rollout_ref.model.path=null", r"model\.path is None; allowed is a folder"),
        ("trainer.n_gpus_per_node=0", r"trainer\.n_gpus_per_node is 0; allowed"),
    ],
)
def test_what_is_not_there_is_said_before_ray(data, tmp_path, override, said, capsys, launched):
    pd.DataFrame({"prompt": ["one"] * 2}).to_parquet(tmp_path / "few.parquet")
    pd.DataFrame({"text": ["one"] * 2}).to_parquet(tmp_path / "bad.parquet")
    (tmp_path / "none.parquet").touch()
    words = [f"recipes={BASE}", *data, override.format(folder=tmp_path)]
    assert command.main(words) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(rf"verl_run: .*{said}.*\.\n", printed.err)
    assert not launched


def test_a_checkpoint_without_our_state_is_refused_before_ray(data, tmp_path, capsys, launched):
    folder = tmp_path / "global_step_4"
    folder.mkdir()
    words = [f"recipes={BASE}", *data, "trainer.resume_mode=resume_path",
             f"trainer.resume_from_path={folder}"]  # fmt: skip
    assert command.main(words) == 2
    assert "which has no folder 'arrol'" in capsys.readouterr().err
    assert command.main([*words, "arrol.mode=off"]) == 0
    (folder / "arrol").mkdir()
    assert command.main(words) == 0


def test_a_marker_of_a_checkpoint_that_is_gone_is_refused(data, tmp_path, capsys, launched):
    (tmp_path / MARKER).write_text("7")
    words = [f"recipes={BASE}", *data, f"trainer.default_local_dir={tmp_path}"]
    assert command.main(words) == 2
    assert "names step 7, whose folder global_step_7 is gone" in capsys.readouterr().err
    assert command.main([*words, "trainer.resume_mode=disable"]) == 0
    (tmp_path / "global_step_7").mkdir()
    assert command.main(words) == 0


def test_a_recipe_that_nothing_would_read_is_refused(tmp_path, capsys):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("arrol: {keep_ratio: 0.25}\n")
    words = ["recipes=mine", f"hydra.searchpath=[{tmp_path}]", "--print-config"]
    assert command.main(words) == 2
    assert "the first line '# @package _global_'" in capsys.readouterr().err


def test_output_that_cant_be_written_is_one_sentence():
    line = f"{sys.executable} -P -m arrol.adapters.verl_run --print-config > /dev/full"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "verl_run: the output can't be written: No space left on device.\n"


def test_a_folder_may_have_any_name(tmp_path, capsys):
    folder = tmp_path / "a (b), c='d' ü"
    (folder / "recipes").mkdir(parents=True)
    (folder / "recipes" / "mine.yaml").write_text(
        "# @package _global_\narrol: {keep_ratio: 0.25}\n"
    )
    place = str(folder).replace("'", r"\'")
    words = ["recipes=mine", f"hydra.searchpath=['file://{place}']"]
    assert command.main([*words, "--print-config", "arrol.keep_ratio"]) == 0
    assert "keep_ratio: 0.25" in capsys.readouterr().out


def test_what_verl_refuses_is_one_sentence(data, capsys, launched):
    mode = "actor_rollout_ref.actor.loss_agg_mode=mean"
    assert command.main([f"recipes={BASE}", *data, mode]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "verl refuses its configuration" in error
    assert "Invalid loss_agg_mode: mean" in error


def test_a_mistake_found_inside_ray_is_one_sentence(monkeypatch, capsys):
    inner = RayTaskError("server", "Traceback ...", ArrolError("sentinel is 9; allowed is 8."))
    outer = RayTaskError("run", "Traceback ...", inner.as_instanceof_cause())

    def fail(arguments):
        raise outer.as_instanceof_cause()

    monkeypatch.setattr(command, "run", fail)
    assert command.main([]) == 2
    assert capsys.readouterr().err == "verl_run: sentinel is 9; allowed is 8.\n"


def test_any_other_error_keeps_its_traceback(monkeypatch):
    def fail(arguments):
        raise RayTaskError("run", "Traceback ...", ValueError("a bug")).as_instanceof_cause()

    monkeypatch.setattr(command, "run", fail)
    with pytest.raises(RayTaskError) as caught:
        command.main([])
    assert str(caught.value.cause) == "a bug"


def test_an_interrupt_ends_with_130(monkeypatch, capsys):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupt)
    assert command.main([]) == 130
    assert capsys.readouterr().err == "verl_run: interrupted.\n"


# Launch


@pytest.mark.parametrize(("use_v1", "runner"), [(True, "TaskRunnerV1"), (False, "TaskRunner")])
def test_off_is_plain_verl(data, launched, use_v1, runner):
    """The configuration is, key for key, what verl's own entry point composes."""
    words = [*data, f"trainer.use_v1={use_v1}", "algorithm.adv_estimator=grpo",
             "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.model.path=some/model",
             "actor_rollout_ref.actor.use_dynamic_bsz=true"]  # fmt: skip
    assert command.main([*words, "arrol.mode=off"]) == 0
    with initialize_config_module("verl.trainer.config", version_base=None):
        plain = compose("ppo_trainer", overrides=words)
    ((config, task_runner),) = launched
    assert config == plain
    assert list(config) == list(plain)
    assert OmegaConf.is_struct(config) == OmegaConf.is_struct(plain)
    assert task_runner.__ray_metadata__.class_name.split(".")[-1] == runner


def test_what_refers_to_our_group_keeps_its_value_in_plain_verl():
    config = compose_config(
        ["arrol.mode=off", "trainer.experiment_name='run-${arrol.mode}'",
         "trainer.logger=[console,'${arrol.preset}']"]
    )  # fmt: skip
    plain = OmegaConf.to_container(command.plain_config(config))
    assert "arrol" not in plain
    assert plain["trainer"]["experiment_name"] == "run-off"
    assert plain["trainer"]["logger"] == ["console", "balanced"]
    local = plain["trainer"]["default_local_dir"]  # verl's own, untouched
    assert local == "checkpoints/${trainer.project_name}/${trainer.experiment_name}"


@pytest.mark.parametrize("mode", ["shadow", "on"])
def test_pruning_has_a_task_runner_of_its_own(data, launched, mode):
    assert command.main([f"recipes={BASE}", *data, f"arrol.mode={mode}"]) == 0
    ((config, task_runner),) = launched
    assert Settings.from_config(config).mode == mode
    assert task_runner.__ray_metadata__.class_name.split(".")[-1] == "PruningTaskRunner"


def test_a_mistake_ends_before_a_demo_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main(["demo=cpu", "arrol.keep_ratio=3"]) == 2
    assert "arrol.keep_ratio is 3" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# Recipes


@pytest.mark.parametrize("recipe", PAPER)
@pytest.mark.parametrize("variant", ["", ",dr_grpo"])
def test_a_recipe_is_one_that_verl_and_we_accept(recipe, variant):
    config = compose_config([f"recipes=[{recipe}{variant}]"])
    settings = Settings.from_config(config)
    command.validate(config)
    OmegaConf.to_container(config, resolve=True)
    assert settings.mode is Mode.ON
    assert (settings.pruning.keep_ratio, settings.pruning.target_ratio) == (0.5, 0.5)
    assert (settings.pruning.detect_length, settings.pruning.cold_start_steps) == (512, 20)
    algorithm, _, model = recipe.partition("_")
    actor = config.actor_rollout_ref
    assert actor.model.path == MODELS[model]
    assert (actor.actor.optim.lr, actor.rollout.n, actor.rollout.val_kwargs.n) == (1e-6, 16, 16)
    assert actor.rollout.response_length == 8192
    assert config.trainer.experiment_name == recipe
    assert actor.actor.clip_ratio_high == (0.28 if algorithm == "dapo" else 0.2)
    assert config.algorithm.filter_groups.enable == (algorithm == "dapo")
    assert config.algorithm.norm_adv_by_std_in_grpo == (not variant)


def test_every_model_has_both_algorithms():
    assert set(PAPER) == {
        f"{algorithm}_{model}" for algorithm in ("grpo", "dapo") for model in MODELS
    }


def test_overlong_shaping_is_where_verl_reads_it():
    config = compose_config([f"recipes=dapo_{BASE.removeprefix('grpo_')}"])
    assert config.reward.reward_manager.name == "dapo"
    assert config.algorithm.filter_groups.metric == "acc"
    assert config.actor_rollout_ref.actor.loss_agg_mode == "token-mean"
    manager = DAPORewardManager.__new__(DAPORewardManager)
    manager.__init__(config, tokenizer=None, compute_score=lambda **kw: 0.0)
    assert manager.max_resp_len == 8192
    assert manager.overlong_buffer_cfg.enable
    assert 0 < manager.overlong_buffer_cfg.len < 8192


def test_dr_grpo_divides_by_no_deviation_and_by_no_length_of_its_own():
    config = compose_config([f"recipes=[{BASE},dr_grpo]"])
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-sum-norm"
    assert config.actor_rollout_ref.actor.loss_scale_factor == 8192


def test_a_folder_of_one_s_own_brings_recipes(tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        f"# @package _global_\ndefaults: [{BASE}, _self_]\narrol: {{keep_ratio: 0.3}}\n"
    )
    config = compose_config([f"hydra.searchpath=[file://{Path(tmp_path)}]", "recipes=mine"])
    assert config.arrol.keep_ratio == 0.3
    assert config.actor_rollout_ref.rollout.n == 16
