"""ARRoL: prune RL rollouts while they are generated.

The core knows no simulator, no vLLM and no verl. A controller makes plans, an engine carries them
out, and what the engine decided comes back with the rollouts::

    controller = PruningController(PruningConfig.balanced())
    plan = controller.plan()                              # down to every engine
    detection = plan.decider().decide_one(request, score) # at the detection length
    metrics = controller.observe(rollouts, outcomes)      # up, with the outcomes

Source of the method: Xu et al., "Prune as You Generate: Online Rollout Pruning for Faster and
Better RLVR", arXiv 2603.24840. Where this implementation differs, the docstring says so.
"""

from pkgutil import extend_path

# Where this folder comes first on the path (python -m, python -c in a clone) and the project is
# installed as a wheel, arrol.sim and arrol.adapters lie there.
__path__ = extend_path(__path__, __name__)

from arrol.advantages import AdvantageKind, advantages
from arrol.backend import Backend
from arrol.calibration import CalibrationTable, CalibratorKind, fit_calibration
from arrol.config import Draw, Preset, PruningConfig, SurvivalKind
from arrol.controller import PruningController
from arrol.decider import Decider, Decisions
from arrol.errors import ArrolError
from arrol.groups import summarize_groups
from arrol.keys import stable_key
from arrol.plan import PruningPlan
from arrol.records import DecisionReason, Detection, FinishReason, Mode, Request, Rollout

__all__ = [
    "AdvantageKind",
    "ArrolError",
    "Backend",
    "CalibrationTable",
    "CalibratorKind",
    "Decider",
    "DecisionReason",
    "Decisions",
    "Detection",
    "Draw",
    "FinishReason",
    "Mode",
    "Preset",
    "PruningConfig",
    "PruningController",
    "PruningPlan",
    "Request",
    "Rollout",
    "SurvivalKind",
    "advantages",
    "fit_calibration",
    "stable_key",
    "summarize_groups",
]
