"""What a file from elsewhere may name: a run's configuration, a preset, a recording.

Reading them executes nothing. But what they name may: an environment as `module:Id` imports the module, and so may an
option of an environment; a judge on a server is sent texts and a key; files are read and written. So `require` compares
what is named there with what is known: built-in names and those of installed entry points, declared choices and
defaults, numbers, sentences. All else is refused without `trust=true`. On a command line it is intended (`admit`).

Secrets, by the names of their environment variables or before the `@` of a web address, are masked in what is printed
and written, and refused where they would be written down; a configuration names the variable (`key: OPENAI_API_KEY`).
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import util
from typing import Any

import rewards
from envs.family import families
from lodestar.settings import settings_of
from lodestar.tables import installed_entry_points
from runners.run.config import UsageError, Values, flatten
from runners.run.value import is_float

# A server on this machine, which is sent nothing that it could pass on.
LOCAL_SERVER = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/[\w/-]*)?")
# The variable that a judge reads unless another is named.
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
# Keys that say where a run is written to.
RUN_FOLDER_KEYS = ("root", "run_dir")
# Options that are words for a model, not names.
SENTENCE_OPTIONS = ("goal", "baseline", "negative", "describe")
# Options that name what is written, and what is read where it exists.
WRITTEN_OPTIONS = re.compile(r"cache|cached|transcript|answers|\w*dir")
READ_OPTIONS = re.compile(
    r"base|model|weights|demos|goals|others|references_from|data|code|rulebook|lerobot|\w*file|\w*path"
)
DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# What joins the parts of a module's name, of a path, of an address.
JOINTS = re.compile(r"[.:/\\\0]")
# As in linear:1:0:200000.
SCHEDULE = re.compile(r"[a-z]+(:[\d.eE+-]+)+")
SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
# Characters; what is shorter may be a word of its own.
MIN_SECRET_LENGTH = 8
# As in https://user:password@host.
LOGIN = re.compile(r"(\w://)[^/\s@'\"]+@")
# At most so many phrases of what is not trusted are named.
MAX_NAMED_PHRASES = 4


def require(trusted: bool, where: str, values: Values) -> None:
    """A UsageError unless the user trusts what a file, which `where` names, would reach.

    `values` are its settings by their keys on a command line (`saved_keys` makes them of what is saved).
    """
    settings: Values = {}
    for key, value in values.items():
        # What an environment is given stays whole, because the keys in it may be texts to be looked at, too.
        settings |= {key: value} if key.startswith("env.") else flatten({key: value})
    reached: list[str] = []
    for key, value in settings.items():
        reached += _reach(key, value, settings)
    phrases = list(dict.fromkeys(reached))
    if not phrases:
        return
    if not trusted:
        words = ", ".join(phrases[:MAX_NAMED_PHRASES])
        if len(phrases) > MAX_NAMED_PHRASES:
            words += f" and {len(phrases) - MAX_NAMED_PHRASES} more"
        raise UsageError(f"{where} names {words}; add trust=true if it is yours, or from a source you trust")
    _search_here()


def saved_keys(saved: Values) -> Values:
    """What a saved configuration, or the metadata of a recording, sets that could reach out."""
    parts = {"env": saved.get("env_options"), "reward": saved.get("reward"), "agent": saved.get("agent")}
    for name, options in parts.items():
        if not isinstance(options or {}, Mapping):
            raise UsageError(f"{name} is saved as {options!r:.80} instead of options by their names; is it a run's?")
    code = saved.get("code") or {}
    if not isinstance(code, Mapping) or not all(isinstance(source, str) for source in code.values()):
        raise UsageError(f"code is saved as {code!r:.80} instead of module:Class by names; is it a run's?")
    keys = {"env": saved.get("env", ""), "starts": saved.get("starts", "")}
    keys["reward"] = [*(parts["reward"] or {}), *code.values()]
    for part, options in parts.items():
        for name, value in (options or {}).items():
            keys[f"{part}.{name}"] = value
    return keys


def admit(arguments: Iterable[str]) -> None:
    """Let what a command line names, as in `env=my_file:Id`, be found in the working directory, behind all else."""
    for argument in arguments:
        key, _, text = argument.partition("=")
        may_name_code = key.split(".")[0] in ("env", "reward", "agent", "policy")
        if may_name_code and JOINTS.search(text) and not is_float(text):
            _search_here()


def _search_here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _reach(key: str, value: Any, settings: Values) -> Iterator[str]:
    """A phrase for everything that a setting would import, send, read or write."""
    part, _, rest = key.partition(".")
    option = key.rpartition(".")[2]
    texts = [text for text in _texts(value) if text and not is_float(text)]
    if key == "env":
        module = str(value).rpartition(":")[0]
        if module and not _is_known(module):
            yield f"env={value}, which imports the module {module}"
    elif key in ("reward", "agent"):
        for text in filter(JOINTS.search, texts):
            yield f"{key}={text}, which is no name in a table"
    elif key == "starts":
        # This imports simulators.
        from envs.snapshots.curriculum import BRANCHES, BY

        if value not in ("", *BY, BRANCHES):
            yield f"starts={value}, a file which would be read"
    elif key in RUN_FOLDER_KEYS:
        yield f"{key}={value}, where it would write"
    elif key == "trust":
        yield "trust=, which belongs on a command line"
    elif key == "env.mission" or (part == "reward" and (option in SENTENCE_OPTIONS or value in _harmless_values(rest))):
        return
    elif WRITTEN_OPTIONS.fullmatch(option):
        for text in texts:
            yield f"the file {text}, which would be written to"
    elif READ_OPTIONS.fullmatch(option) and any(map(os.path.lexists, texts)):
        yield f"the file {value}, which would be read"
    elif part == "env":
        for text in filter(_is_code, texts):
            yield f"the name {text}, which an environment may import"
    elif option == "key":
        if value != DEFAULT_KEY_VARIABLE and os.environ.get(str(value)):
            yield f"the variable {value}, which would be sent to a server"
    elif option == "python":
        yield f"the program {value}, which would be started"
    elif option == "url":
        variable = settings.get(f"{key.removesuffix('url')}key", DEFAULT_KEY_VARIABLE)
        if not LOCAL_SERVER.fullmatch(str(value)) or os.environ.get(str(variable)):
            yield f"a server at {value}, which would be sent what is seen and a key of yours"
    else:
        for text in texts:
            # The names of models hold numbers of versions.
            name = text.replace(".", "") if option == "model" else text
            if JOINTS.search(name) and not SCHEDULE.fullmatch(text):
                yield f"{key}={text}, which may be a file or a server"


def _is_code(text: str) -> bool:
    """Whether `import_module` might find something under a text, or under the first part of it; any text is a name."""
    if JOINTS.search(text):
        return not (DOTTED_NAME.fullmatch(text) and _is_known(text))
    if text in sys.modules or text in sys.stdlib_module_names:
        return False
    try:
        return util.find_spec(text) is not None
    except (ImportError, ValueError):
        return True


def _is_known(module: str) -> bool:
    """Whether a module was imported before, or is of a package that brings environments of ours or by entry points."""
    if not DOTTED_NAME.fullmatch(module):
        return False
    packages = set()
    for source in (*families().values(), *installed_entry_points("gymnasium.envs")):
        packages.add(re.split("[.:]", source.module or "")[0])
    return module in sys.modules or module.split(".")[0] in packages


def _harmless_values(path: str) -> tuple[Any, ...]:
    """Of a reward's option, as in `rnd.scale`: its default and its choices; none for any other key."""
    reward, _, option = path.partition(".")
    if reward in rewards.names():
        for name, default, declared in settings_of(rewards.get(reward).Config):
            if name == option:
                return (default, *declared.choices)
    return ()


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, the keys of dicts among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def secrets() -> dict[str, str]:
    """Environment variables whose names mark their values as secret."""
    names = filter(SECRET_VARIABLE.search, os.environ)
    values = {}
    for name in names:
        if len(os.environ[name]) >= MIN_SECRET_LENGTH:
            values[name] = os.environ[name]
    return values


def mask_secrets(text: str) -> str:
    """A text without the secrets of the environment, and without logins in web addresses."""
    for value in sorted(secrets().values(), key=len, reverse=True):
        text = text.replace(value, "***")
    return LOGIN.sub(r"\1***@", text)


def refuse(arguments: Iterable[str]) -> None:
    """A UsageError if there is a secret in a command line, which is written down with the run."""
    variables = secrets()
    for argument in arguments:
        key = argument.partition("=")[0]
        for name, value in variables.items():
            if value in argument:
                raise UsageError(f"{key} holds the value of ${name}, which would be written down; give its name {name}")
        if LOGIN.search(argument):
            raise UsageError(
                f"{key} holds a web address with a login, which would be written down; put a key into an environment "
                "variable and give the variable's name as key="
            )
