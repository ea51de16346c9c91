"""The step time: closed-form sums against a loop, the knee against its limits, KV capacity."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.errors import ArrolError
from arrol.sim.cost import MAX_KNEE, StepTime, kv_capacity, roofline
from arrol.sim.hardware import ACCELERATORS, MODELS

COST = StepTime(
    fixed=3e-3,
    per_sequence=5e-6,
    streaming=1e-3,
    arithmetic=4e-6,
    knee=1.24,
    offset=4e-4,
    kv_read=3.6e-8,
)

times = st.floats(1e-9, 1.0)
knees = st.floats(1.0, MAX_KNEE)
counts = st.integers(0, 100_000)
costs = st.builds(
    StepTime,
    fixed=st.floats(0.0, 0.1),
    per_sequence=st.floats(0.0, 1e-4),
    streaming=st.floats(1e-6, 0.1),
    arithmetic=st.floats(1e-9, 1e-4),
    knee=st.floats(1.0, 10.0),
    offset=st.floats(0.0, 0.01),
    kv_read=st.floats(0.0, 1e-6),
)


@given(costs, st.integers(0, 400), st.integers(0, 300), st.integers(0, 1_000_000))
def test_a_jump_takes_what_its_steps_take(cost, count, sequences, kv_tokens):
    looped = sum(cost.step(sequences, kv_tokens + sequences * passed) for passed in range(count))
    assert cost.steps(count, sequences, kv_tokens) == pytest.approx(looped, rel=1e-9, abs=1e-15)


@given(costs, st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 300))
def test_a_jump_can_be_cut_anywhere(cost, first, second, sequences):
    whole = cost.steps(first + second, sequences, 1000)
    parts = cost.steps(first, sequences, 1000) + cost.steps(
        second, sequences, 1000 + sequences * first
    )
    assert whole == pytest.approx(parts, rel=1e-9)


def test_a_step_worked_out_by_hand():
    # g(250): m = c·n = 1 ms, so (2·1)^(1/1.24) ms; plus .4 ms.
    linear = 1e-3 * 2 ** (1 / 1.24) + 4e-4
    assert COST.linear(250) == pytest.approx(linear, rel=1e-12)
    # 50 decoding beside 200 prefill tokens, over 100,000 KV tokens: 3 ms + .25 ms + g + 3.6 ms.
    assert COST.step(50, 100_000, 200) == pytest.approx(6.85e-3 + linear, rel=1e-12)


@given(costs, counts, counts, counts, st.integers(1, 1000))
def test_more_work_never_takes_less_time(cost, sequences, kv_tokens, prefill, more):
    base = cost.step(sequences, kv_tokens, prefill)
    slack = 1e-12 * base  # rounding of the powers
    assert cost.step(sequences + more, kv_tokens, prefill) >= base - slack
    assert cost.step(sequences, kv_tokens + more, prefill) >= base - slack
    assert cost.step(sequences, kv_tokens, prefill + more) >= base - slack


@given(times, times, knees)
def test_the_roofline_lies_between_the_greater_and_the_sum(streaming, arithmetic, knee):
    time = roofline(streaming, arithmetic, knee)
    assert max(streaming, arithmetic) * (1 - 1e-12) <= time
    assert time <= (streaming + arithmetic) * (1 + 1e-12)


@given(times, times, knees, knees)
def test_a_sharper_knee_is_never_slower(streaming, arithmetic, first, second):
    blunt, sharp = sorted((first, second))
    slack = 1 + 1e-12
    assert roofline(streaming, arithmetic, sharp) <= roofline(streaming, arithmetic, blunt) * slack


def test_the_limits_of_the_knee():
    assert roofline(2e-3, 3e-3, 1.0) == pytest.approx(5e-3, rel=1e-12)  # the sum
    assert roofline(2e-3, 3e-3, MAX_KNEE) == pytest.approx(3e-3, rel=1e-6)  # the greater
    assert roofline(3e-3, 3e-3, MAX_KNEE) == pytest.approx(3e-3, rel=0.022)
    assert roofline(3.0, 4.0, 2.0) == pytest.approx(5.0, rel=1e-12)  # Pythagoras
    assert COST.linear(0) == pytest.approx(COST.streaming + COST.offset, rel=1e-12)


def test_many_tokens_cost_their_arithmetic():
    cost = replace(COST, knee=2.0, offset=0.0)
    assert cost.linear(10**7) == pytest.approx(40.0, rel=1e-6)


def test_a_model_on_an_accelerator():
    cost = StepTime.of(MODELS["Qwen3-1.7B"], ACCELERATORS["GH200"])
    # 1.72e9 tied weights of 2 B at 80% of 4 TB/s; 2 operations each at 75% of 990 TFLOP/s.
    assert cost.streaming == pytest.approx(2 * 1.72e9 / 3.2e12, rel=1e-3)
    assert cost.arithmetic == pytest.approx(2 * 1.72e9 / 742.5e12, rel=1e-3)
    assert cost.kv_read == pytest.approx(114_688 / 3.2e12, rel=1e-12)
    assert cost.knee == 1.24


def test_efficiencies_act_on_their_own_term():
    model, accelerator = MODELS["Qwen3-4B"], ACCELERATORS["H100"]
    base = StepTime.of(model, accelerator)
    narrow = StepTime.of(model, accelerator, bandwidth_efficiency=0.4)
    assert narrow.streaming == pytest.approx(2 * base.streaming)
    assert narrow.kv_read == pytest.approx(2 * base.kv_read)
    assert narrow.arithmetic == base.arithmetic
    slow = StepTime.of(model, accelerator, mfu=0.375)
    assert slow.arithmetic == pytest.approx(2 * base.arithmetic)
    assert slow.streaming == base.streaming


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fixed", -1e-9),
        ("knee", 0.99),
        ("knee", 33.0),
        ("kv_read", float("nan")),
        ("streaming", float("inf")),
    ],
)
def test_an_impossible_step_time_is_refused_by_name(field, value):
    with pytest.raises(ArrolError, match=f"step time {field} is"):
        replace(COST, **{field: value})


@pytest.mark.parametrize("name", ["bandwidth_efficiency", "mfu"])
@pytest.mark.parametrize("value", [0.0, 1.01])
def test_an_efficiency_outside_the_unit_interval_is_refused(name, value):
    with pytest.raises(ArrolError, match=f"{name} is"):
        StepTime.of(MODELS["Qwen3-4B"], ACCELERATORS["H100"], **{name: value})


def test_kv_capacity_is_what_the_weights_leave():
    model, accelerator = MODELS["Qwen3-1.7B"], ACCELERATORS["GH200"]
    # 96 GiB · .9 − 3.4411 GB − 3 GiB = 86.11 GB, at 114,688 B a token.
    free = 96 * 2**30 * 0.9 - 2 * 1_720_574_976 - 3 * 2**30
    assert kv_capacity(model, accelerator) == free // 114_688
    assert kv_capacity(model, accelerator) == pytest.approx(750_800, rel=1e-3)
    assert kv_capacity(model, accelerator, reserve=0) - kv_capacity(model, accelerator) in (
        3 * 2**30 // 114_688,
        3 * 2**30 // 114_688 + 1,
    )


def test_no_room_for_kv_is_refused():
    with pytest.raises(ArrolError, match=r"utilization is 0\.1;.*A100.*Qwen3-8B"):
        kv_capacity(MODELS["Qwen3-8B"], ACCELERATORS["A100"], utilization=0.1)
