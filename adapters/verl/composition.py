"""verl's configuration and ours, composed by Hydra, without importing verl.

Importing it would take seconds, and torch: Hydra is given the folder of its YAML files instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrol.adapters.verl.settings import unknown
from arrol.adapters.verl.versions import verl_version
from arrol.errors import ArrolError

if TYPE_CHECKING:
    from omegaconf import DictConfig

HERE = Path(__file__).parent
PRIMARY = "verl_run"
_SEARCH_PATH = "hydra.searchpath"


def compose_config(overrides: Sequence[str] = ()) -> DictConfig:
    """verl's ``ppo_trainer`` with the group ``arrol``, as Hydra composes it.

    Args:
        overrides: as on Hydra's command line. ``hydra.searchpath=[file://FOLDER]`` adds folders
            with configurations of the user's own.

    Raises:
        ArrolError: verl is missing, or an override is none that can be carried out.
    """
    verl = verl_folder()  # first: without verl there is no Hydra either
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    own, words = _search_path(overrides)
    folders = ",".join(map(_quoted, [f"file://{verl / 'trainer' / 'config'}", *own]))
    try:
        with initialize_config_dir(str(HERE), job_name=PRIMARY, version_base=None):
            config = compose(PRIMARY, overrides=[f"{_SEARCH_PATH}=[{folders}]", *words])
    except (HydraException, OmegaConfBaseException, RecursionError, TypeError, ValueError,
            YAMLError) as error:  # fmt: skip
        raise _sentence(error, words) from None
    if "recipes" in config:
        raise ArrolError(
            f"{' '.join(words)} sets recipes.{next(iter(config.recipes), '')}, which nothing "
            "reads; allowed in a recipe of your own is the first line '# @package _global_'."
        )
    _name_mode(config)
    return config


def verl_folder() -> Path:
    """Where verl's package lies.

    Raises:
        ArrolError: it is not installed.
    """
    verl_version()
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        raise ArrolError("verl is installed without its files; allowed is a complete installation.")
    return Path(spec.origin).parent


def keys_of(config: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a configuration."""
    from omegaconf import DictConfig

    for name in config:
        yield f"{prefix}{name}"
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not (node._is_none() or node._is_interpolation()):
            yield from keys_of(node, f"{prefix}{name}.")


def _name_mode(config: Any) -> None:
    """Write on and off as words: YAML has made booleans of them."""
    from omegaconf import OmegaConf

    mode = OmegaConf.select(config, "arrol.mode", throw_on_resolution_failure=False)
    if isinstance(mode, bool):
        config.arrol.mode = "on" if mode else "off"


def _search_path(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Folders that the user adds to the search path, and the other overrides."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    own, words = [], []
    parser = OverridesParser.create()
    for word in overrides:
        try:
            override = parser.parse_override(word)
        except HydraException as error:
            raise ArrolError(
                f"{word!r} is no override; allowed is key=value without spaces, and key='value' "
                f"where the value has other signs than letters and digits ({_first_line(error)})."
            ) from None
        if override.is_sweep_override():
            raise ArrolError(
                f"{word!r} is a sweep over several values; allowed is one, as a run has one: "
                "key=[a,b] is a list, and key='a,b' a text with a comma."
            )
        if override.key_or_group != _SEARCH_PATH:
            words.append(word)
            continue
        value = override.value()
        own += [_folder(str(v)) for v in (value if isinstance(value, list) else [value])]
    return own, words


def _quoted(text: str) -> str:
    """A value as Hydra reads it, whatever letters a folder's name has."""
    return "'" + text.replace("'", r"\'") + "'"


def _folder(place: str) -> str:
    path = place.removeprefix("file://")
    if "://" not in path and not Path(path).is_dir():
        raise ArrolError(f"{_SEARCH_PATH} is {place}; allowed are folders that exist.")
    return place


def _sentence(error: Exception, words: Sequence[str]) -> ArrolError:
    """What Hydra complains about, in one sentence."""
    text = str(error)
    key = re.match(r"Could not override '([^']*)'", text)
    if key:
        full = getattr(error.__cause__, "full_key", None)  # of a key inside a value: {key: 1}
        return unknown(full or key[1], ["recipes", *keys_of(compose_config())])
    there = re.match(r"Could not append to config. An item is already at '([^']*)'", text)
    if there:
        return ArrolError(f"+{there[1]} adds a key that is there; allowed is {there[1]}=value.")
    missing = re.search(r"Could not (?:find|load) '([^']*)/([^'/]*)'", text)
    if missing:
        group, name = missing.groups()
        options = re.search(r"Available options in '[^']*':\n((?:\t.*\n?)*)", text)
        found = options[1].split() if options else [p.stem for p in (HERE / group).glob("*.yaml")]
        allowed = ", ".join(sorted(option for option in found if not option.startswith("_")))
        hint = ""
        if group == "recipes":
            hint = " (your own lie in a folder 'recipes' in one of hydra.searchpath's)"
        return ArrolError(f"{group} is {name}; allowed is one of {allowed or 'none'}{hint}.")
    return ArrolError(f"{' '.join(words)} can't be composed: {_first_line(error)}.")


def _first_line(error: Exception) -> str:
    return str(error).split("\nSee ")[0].replace("\n", ", ").rstrip(". ")
