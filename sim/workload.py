"""The law that simulated rollouts are drawn from: outcomes, lengths and quality scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, expit, ndtr, ndtri

from arrol.errors import ArrolError, check_integer, check_range
from arrol.keys import stable_key
from arrol.records import FinishReason
from arrol.sim.scheduler import SimulatedRequest

FloatArray = NDArray[np.float64]

QUADRATURE = 256  #: equally probable points that stand for a law in an integral
MAX_SCORE_GAIN = 100.0  #: signal over noise beyond which a score counts as out of reach


@dataclass(frozen=True)
class Workload:
    """Prompts × rollouts whose outcome, length and score hang together in a stated way.

    Everything comes from four independent standard Gaussians: the prompt's ease D_b and, for
    each rollout, the luck Z, the length noise ε and the score noise η.

    * Pass rate θ_b = F⁻¹(Φ(D_b)), with F the Beta law of mean ``pass_rate`` and a + b =
      ``pass_rate_concentration``. Outcome Y = 1 where Φ(Z) > 1 − θ_b, so P(Y=1 | θ_b) = θ_b.
    * Length: log L = log ``mean_length`` − σ²/2 + σ(h·V + √(1 − h²)·ε), rounded, at least 1, and
      cut at ``max_length``; a cut rollout keeps its outcome. V = (E[Dθ]·D + E[φ]·Z)/norm, with
      φ = φ(Φ⁻¹(θ)), is the standard Gaussian of ease and luck that correlates most with Y; h makes
      the correlation of log L and Y equal ``length_correlation``. So hard prompts get longer
      rollouts, and within a prompt the wrong ones are longer.
    * Score: s = sigmoid(d·((1 − π)·Y + π·θ_b − pass_rate) + η), with π = ``prompt_signal``; d
      makes the AUC over all rollouts equal ``score_auc`` (d = √2·Φ⁻¹(AUC) where π = 0). A score
      is no probability: the controller's calibration makes one of it. It is the same at every
      detection length.

    Attributes:
        prompts: groups of a step, B.
        group_size: rollouts of a prompt, G.
        prompt_tokens: length of every prompt.
        mean_length: generated tokens of a rollout on average, before rounding and cutting.
        length_spread: σ, standard deviation of log length.
        max_length: generated tokens at which a rollout is cut.
        pass_rate: mean over prompts of P(Y=1).
        pass_rate_concentration: a + b; small where most prompts are easy or hopeless.
        length_correlation: of log length with Y; negative where right answers are shorter.
        score_auc: AUC of the score over all rollouts, in (0, 1).
        prompt_signal: π, share of the score's signal that only knows the prompt.

    Raises:
        ArrolError: a value is out of range, or the correlation or AUC is more than this law of
            pass rates can give.
    """

    prompts: int
    group_size: int
    prompt_tokens: int = 150
    mean_length: float = 2000.0
    length_spread: float = 0.6
    max_length: int = 8192
    pass_rate: float = 0.32
    pass_rate_concentration: float = 2.0
    length_correlation: float = -0.3
    score_auc: float = 0.78
    prompt_signal: float = 0.5

    def __post_init__(self) -> None:
        for name in ("prompts", "group_size", "prompt_tokens", "max_length"):
            check_integer(name, getattr(self, name), low=1)
        check_range("mean_length", self.mean_length, low=1.0)
        check_range("length_spread", self.length_spread, low=0.0)
        check_range("pass_rate", self.pass_rate, 0.0, 1.0, open_low=True, open_high=True)
        check_range("pass_rate_concentration", self.pass_rate_concentration, 0.0, open_low=True)
        check_range("prompt_signal", self.prompt_signal, 0.0, 1.0)
        check_range("score_auc", self.score_auc, 0.0, 1.0, open_low=True, open_high=True)
        check_range("length_correlation", self.length_correlation, -1.0, 1.0)
        self._length_loadings, self._score_gain  # noqa: B018  (both refuse what is out of reach)

    def draw(self, rng: np.random.Generator) -> WorkloadBatch:
        """The rollouts of one step; a pure function of the generator's state."""
        B, G = self.prompts, self.group_size
        ease_B = rng.standard_normal(B)
        luck_N, length_noise_N, score_noise_N = rng.standard_normal((3, B * G))
        ease_N = np.repeat(ease_B, G)
        pass_rates_B = self._pass_rates(ndtr(ease_B))
        pass_rates_N = np.repeat(pass_rates_B, G)
        outcomes_N = (ndtr(luck_N) > 1.0 - pass_rates_N).astype(np.int64)
        uncut_N = self._lengths(ease_N, luck_N, length_noise_N)
        return WorkloadBatch(
            group_size=G,
            prompt_tokens=self.prompt_tokens,
            groups_N=np.repeat(np.arange(B), G),
            indices_N=np.tile(np.arange(G), B),
            outcomes_N=outcomes_N,
            lengths_N=np.minimum(uncut_N, self.max_length),
            cut_N=uncut_N > self.max_length,
            scores_N=self._scores(outcomes_N, pass_rates_N, score_noise_N),
            pass_rates_B=pass_rates_B,
        )

    @property
    def within_prompt_auc(self) -> float:
        """AUC of the score among the rollouts of one prompt: Φ(d(1 − π)/√2)."""
        return float(ndtr(self._score_gain * (1.0 - self.prompt_signal) / math.sqrt(2.0)))

    def _pass_rates(self, quantiles: FloatArray, right: int = 0, wrong: int = 0) -> FloatArray:
        """θ at these quantiles of its law, after so many right and wrong rollouts were seen."""
        a = self.pass_rate * self.pass_rate_concentration
        b = self.pass_rate_concentration - a
        return np.asarray(betaincinv(a + right, b + wrong, quantiles))

    def _lengths(self, ease_N: FloatArray, luck_N: FloatArray, noise_N: FloatArray) -> FloatArray:
        """Uncut lengths, whole tokens."""
        ease_loading, luck_loading = self._length_loadings
        noise_loading = math.sqrt(max(0.0, 1.0 - ease_loading**2 - luck_loading**2))
        gauss_N = ease_loading * ease_N + luck_loading * luck_N + noise_loading * noise_N
        log_mean = math.log(self.mean_length) - self.length_spread**2 / 2.0
        lengths_N = np.exp(log_mean + self.length_spread * gauss_N)
        return np.asarray(np.maximum(1, np.rint(lengths_N)).astype(np.int64))

    def _scores(
        self, outcomes_N: NDArray[np.int64], pass_rates_N: FloatArray, noise_N: FloatArray
    ) -> FloatArray:
        share = self.prompt_signal
        signal_N = (1.0 - share) * outcomes_N + share * pass_rates_N - self.pass_rate
        return np.asarray(expit(self._score_gain * signal_N + noise_N))

    @cached_property
    def _length_loadings(self) -> tuple[float, float]:
        """What ease D and luck Z weigh in log length: h·E[Dθ]/norm and h·E[φ]/norm.

        Cov(D, Y) = E[Dθ] and Cov(Z, Y) = E[φ(Φ⁻¹(θ))], so norm/sd(Y) is the correlation of V
        and Y, the largest that a Gaussian can have here.
        """
        quantiles = _midpoints()
        pass_rates = self._pass_rates(quantiles)
        ease_covariance = float(np.mean(ndtri(quantiles) * pass_rates))
        density = np.exp(-(ndtri(pass_rates) ** 2) / 2.0) / math.sqrt(2.0 * math.pi)
        luck_covariance = float(np.mean(density))
        norm = math.hypot(ease_covariance, luck_covariance)
        outcome_deviation = math.sqrt(self.pass_rate * (1.0 - self.pass_rate))
        reachable = norm / outcome_deviation
        check_range("length_correlation", self.length_correlation, -reachable, reachable)
        scale = self.length_correlation / reachable / norm
        return scale * ease_covariance, scale * luck_covariance

    @cached_property
    def _score_gain(self) -> float:
        """d, solved so that AUC = E[Φ(d·(1 − π + π(θ₁ − θ₀))/√2)] over a right and a wrong rollout.

        The pass rate behind a right rollout is Beta(a + 1, b), behind a wrong one Beta(a, b + 1).
        """
        right = self._pass_rates(_midpoints(), right=1)
        wrong = self._pass_rates(_midpoints(), wrong=1)
        gap = 1.0 - self.prompt_signal * (1.0 - np.subtract.outer(right, wrong))
        wanted = abs(self.score_auc - 0.5)
        if wanted == 0.0:
            return 0.0

        def excess(gain: float) -> float:
            return float(np.mean(ndtr(gain * gap / math.sqrt(2.0)))) - 0.5 - wanted

        if excess(MAX_SCORE_GAIN) < 0.0:
            reachable = excess(MAX_SCORE_GAIN) + 0.5 + wanted
            raise ArrolError(
                f"score_auc is {self.score_auc!r}; allowed is a number from {1.0 - reachable:.3f} "
                f"to {reachable:.3f}, all that a score with prompt_signal = {self.prompt_signal:g} "
                f"can tell."
            )
        gain = float(brentq(excess, 0.0, MAX_SCORE_GAIN))
        return math.copysign(gain, self.score_auc - 0.5)


@dataclass(frozen=True)
class WorkloadBatch:
    """The rollouts of one step, N = B·G, in order of prompt and index.

    Attributes:
        group_size: G.
        prompt_tokens: length of every prompt.
        groups_N: the prompt, 0 … B − 1.
        indices_N: place in the group, 0 … G − 1.
        outcomes_N: Y, 1 where right.
        lengths_N: tokens that the rollout generates unpruned, at least 1.
        cut_N: it ends because it reached the token limit.
        scores_N: quality score in [0, 1].
        pass_rates_B: θ of each prompt.
    """

    group_size: int
    prompt_tokens: int
    groups_N: NDArray[np.int64]
    indices_N: NDArray[np.int64]
    outcomes_N: NDArray[np.int64]
    lengths_N: NDArray[np.int64]
    cut_N: NDArray[np.bool_]
    scores_N: FloatArray
    pass_rates_B: FloatArray

    def keys(self, step: int) -> NDArray[np.uint64]:
        """64-bit identity of each rollout [N] in training step ``step``."""
        pairs = zip(self.groups_N.tolist(), self.indices_N.tolist(), strict=True)
        return np.array([stable_key(step, *pair) for pair in pairs], dtype=np.uint64)

    def group_keys(self, step: int) -> NDArray[np.uint64]:
        """64-bit identity of each rollout's group [N] in training step ``step``."""
        keys_B = [stable_key(step, group) for group in range(len(self.pass_rates_B))]
        return np.repeat(np.array(keys_B, dtype=np.uint64), self.group_size)

    def requests(self, step: int) -> list[SimulatedRequest]:
        """The rollouts as requests of training step ``step``, for the simulated engine."""
        columns = zip(
            self.keys(step).tolist(),
            self.group_keys(step).tolist(),
            self.indices_N.tolist(),
            self.lengths_N.tolist(),
            self.scores_N.tolist(),
            self.outcomes_N.tolist(),
            self.cut_N.tolist(),
            strict=True,
        )
        return [
            SimulatedRequest(
                key=key,
                group=group,
                index=index,
                group_size=self.group_size,
                prompt_tokens=self.prompt_tokens,
                length=length,
                score=score,
                outcome=outcome,
                finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
            )
            for key, group, index, length, score, outcome, cut in columns
        ]


def _midpoints() -> FloatArray:
    """Quantiles (i + ½)/n of n equally probable points."""
    return (np.arange(QUADRATURE) + 0.5) / QUADRATURE
