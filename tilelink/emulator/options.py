"""The options by which a user says how ranks on the CPU are run and observed: the same in all worlds."""

from __future__ import annotations

from typing import Any, get_args

from tilelink.emulator.execution import Admission, Races, Switch
from tilelink.emulator.policies import PolicyWord, made
from tilelink.errors import ArgumentError, Site, WorldError, similar

CHOICES = {"admit": get_args(Admission), "switch": get_args(Switch), "races": (True, "collect", False)}


def check_resident(resident: int | None) -> None:
    """Raises WorldError for fewer than 1."""
    if resident is not None and resident < 1:
        raise WorldError(f"resident={resident}: at least 1 worker of a rank is under way", Site.of_user())


def checked(
    *, seed: int, policy: PolicyWord, resident: int | None, admit: Admission, races: Races, switch: Switch,
    observer: Any,
) -> dict[str, Any]:  # fmt: skip
    """The options of an `Execution`, without the seed. Raises WorldError for `resident` below 1, and ArgumentError for
    another value that it does not know."""
    check_resident(resident)
    for name, value in (("admit", admit), ("switch", switch), ("races", races)):
        if value not in CHOICES[name]:
            known = ", ".join(map(repr, CHOICES[name]))
            must = f"it must be one of {known}{similar(value, map(str, CHOICES[name]))}"
            raise ArgumentError(f"{name}={value!r}; {must}", Site.of_user())
    try:
        made(policy, seed)
    except ValueError as error:
        raise ArgumentError(str(error), Site.of_user()) from None
    return dict(policy=policy, resident=resident, admit=admit, races=races, switch=switch, observer=observer)
