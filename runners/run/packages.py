"""Whether our packages are ours: another project may have installed one of the same name."""

import base64
import hashlib
import re
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path

from lodestar.packages import DISTRIBUTION

HOME = Path(__file__).resolve().parents[2]
PACKAGES = ("agents", "envs", "lodestar", "rewards", "runners")


def name_collision() -> str | None:
    """One sentence if one of our package names belongs to another project (`openai-agents` installs an `agents`)."""
    for name in PACKAGES:
        place = _place_of(name)
        if place is None:
            return f"the package {name!r} is missing beside {HOME}; install {DISTRIBUTION} again"
        # Either the package's __init__.py, or the folder of one that has none.
        home = place.parent.parent if place.suffix else place.parent
        if home != HOME:
            return (
                f"the package {name!r} is {place.parent}, which is not part of {DISTRIBUTION} in {HOME}; "
                "use a separate environment for the other one"
            )
    return _overwritten_sentence()


def _place_of(package: str) -> Path | None:
    """The file of a package, or its folder if it has no `__init__.py`; None if there is none."""
    spec = util.find_spec(package)
    if spec is None:
        return None
    origin = spec.origin or next(iter(spec.submodule_search_locations or []), None)
    return None if origin is None else Path(origin).resolve()


def _overwritten_sentence() -> str | None:
    """The same where the other project was installed over ours, so that its `__init__.py` lies in our folder."""
    with suppress(metadata.PackageNotFoundError):
        ours = metadata.distribution(DISTRIBUTION)
        # Of a checkout there is no list of files.
        if Path(str(ours.locate_file(""))).resolve() != HOME:
            return None
        record = ours.read_text("RECORD") or ""
        for name in PACKAGES:
            file = f"{name}/__init__.py"
            listed = re.search(rf"^{file},sha256=([\w-]+)", record, re.MULTILINE)
            # As a wheel's RECORD writes it.
            digest = base64.urlsafe_b64encode(hashlib.sha256((HOME / file).read_bytes()).digest())
            if listed and listed[1] != digest.decode().rstrip("="):
                return (
                    f"the package {name!r} of {DISTRIBUTION} in {HOME} was overwritten by {_other_owners(file)}; "
                    f"install {DISTRIBUTION} in an environment without it"
                )
    return None


def _other_owners(file: str) -> str:
    """The other distributions that list a file as theirs."""
    owners = set()
    for other in metadata.distributions():
        if f"\n{file}," in f"\n{other.read_text('RECORD')}":
            owners.add(other.name)
    return " and ".join(sorted(owners - {DISTRIBUTION})) or "something else"
