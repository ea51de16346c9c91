"""verl's own main with the demo's settings, and nothing of ours but the demo's shims."""

import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from arrol.adapters.verl import demo

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith(("demo=", "arrol."))]
    # verl itself must not be imported before the shims are in place.
    verl = Path(find_spec("verl").origin).parent
    with initialize_config_dir(str(verl / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer")
    settings = OmegaConf.load(str(files("arrol.adapters.verl") / "demo" / "cpu.yaml"))
    with open_dict(config):
        config.merge_with(settings)
        config.merge_with_dotlist(words)
        del config["arrol"]
    demo.prepare(config)

    from verl.trainer import main_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    validate_config(config, need_reference_policy(config), need_critic(config))
    main_ppo.run_ppo(config, main_ppo.TaskRunnerV1)
