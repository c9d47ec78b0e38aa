"""Binding: makes a tile program of a recording, a schedule and dtypes, pass after pass."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from tilelink.errors import (
    DtypeError,
    RoleWithoutScheduleError,
    ScheduleError,
    ScheduleWithoutRoleError,
    Site,
    counted,
    listed,
    similar,
)
from tilelink.frontend.ir import Tensor, TileProgram
from tilelink.frontend.passes.elaborate import Binding, elaborate
from tilelink.frontend.passes.fold import drop_unread, fold
from tilelink.frontend.passes.late_signals import late_signals
from tilelink.frontend.passes.multicast import multicast
from tilelink.frontend.passes.own import store_own
from tilelink.frontend.passes.pieces import wait_in_pieces
from tilelink.frontend.passes.publish import publish
from tilelink.frontend.passes.read_own import read_own
from tilelink.frontend.passes.resources import check_resources
from tilelink.frontend.passes.signals import derive_signals
from tilelink.frontend.passes.split import split_waits
from tilelink.frontend.schedule import Schedule, SMs
from tilelink.frontend.values import dtype_name
from tilelink.frontend.verify import verify
from tilelink.language import Recording, TensorWord, launched

PASSES = (
    elaborate, multicast, fold, store_own, drop_unread, check_resources, publish, wait_in_pieces, read_own,
    derive_signals, split_waits, late_signals,
)  # fmt: skip


def bind(
    recording: Recording, schedule: Schedule, given: Mapping[str, Any], parameters: Collection[str], site: Site
) -> TileProgram:
    """The tile program of a recording. `given`: dtypes by name, for tensors of the recording and for `parameters` that
    it leaves out. `site`: the place of the program. With TILELINK_VERIFY=1 in the environment, the result of each pass
    is verified. Raises the errors of the frontend."""
    _check_roles(recording, schedule)
    dtypes = _dtypes(recording, given, parameters, site)
    routed = [d for route in recording.routes for d in route.sides]
    cut = frozenset(t.dims[t.sharded] for t in recording.tensors if t.sharded is not None).union(routed)
    tensors = tuple(
        Tensor(t.name, t.dims, t.sharded, t.kind, dtypes[t.name], t.buffers, t.contiguous) for t in recording.tensors
    )
    program = TileProgram(
        name=recording.name,
        tensors=(*tensors, *(t.token for t in tensors if t.buffers)),
        cut=tuple(d for d in dict.fromkeys([*(d for t in tensors for d in t.dims), *routed]) if d in cut),
        slots=schedule.slots,
        site=site,
        schedule_site=schedule.site,
        routes=tuple(recording.routes),
    )
    binding = Binding(recording, schedule)
    for change in PASSES:
        program = change(program, binding)
        if os.environ.get("TILELINK_VERIFY") == "1":
            verify(program, change.__name__)
    return program


def _dtypes(
    recording: Recording, given: Mapping[str, Any], parameters: Collection[str], site: Site
) -> dict[str, str]:
    """The dtype of every tensor: the given one, or else the declared one, or else the first given one (or float32)."""
    for name in given:
        if all(t.name != name for t in recording.tensors) and name not in parameters:
            known = listed([t.name for t in recording.tensors], name)
            raise DtypeError(f"a dtype for {name}, which is no tensor of {recording.name}; it has {known}", site)
    dtypes: dict[str, str] = {}
    first = next((given[t.name] for t in recording.tensors if t.name in given), "float32")
    for t in recording.tensors:
        wanted = given.get(t.name, t.dtype)
        if isinstance(wanted, TensorWord):
            dtypes[t.name] = dtypes[wanted.name]
            continue
        try:
            dtypes[t.name] = dtype_name(first if wanted is None else wanted)
        except ValueError as e:
            raise DtypeError(f"{t.name}: {e}", site) from e
    return dtypes


def _check_roles(recording: Recording, schedule: Schedule) -> None:
    roles = [launch.scheduled for launch in recording.launches]
    strange = [name for name in schedule if name not in roles and name not in map(launched, roles)]
    missing = {launched(r) for r in roles} - schedule.keys()
    misspelled = [name for name in strange if similar(name, missing)]
    _refuse_roles(recording, schedule, misspelled, roles)
    for launch in recording.launches:
        if (name := launched(launch.scheduled)) not in schedule:
            known = listed(schedule, name) or "no role"
            raise RoleWithoutScheduleError(f"the schedule says nothing of role {name}; it names {known}", launch.site)
    sms = {r: s for r in roles if isinstance(s := schedule.of(r), SMs)}
    if len({s.warps for s in sms.values()}) > 1:
        warps = ", ".join(f"{r} has {counted(s.warps, 'warp')}" for r, s in sms.items())
        said = f"{warps}: the roles of a program are one kernel, so all have the same number of warps"
        silent = ", ".join(r for r, s in sms.items() if s.warps == SMs.warps)
        other = next(s.warps for s in sms.values() if s.warps != SMs.warps)
        instead = f"{SMs.warps} is the default, so write warps={other} for {silent}, too" if silent else "write one"
        raise ScheduleError(f"{said}; {instead}", schedule.site)
    for name in {launched(r): s for r, s in sms.items()}:
        counts = {r: s.count for r, s in sms.items() if launched(r) == name}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{r}: {n}" for r, n in counts.items())
            raise ScheduleError(f"the members of {name} share SMs, so their number is one: {said}", schedule.site)
    _refuse_roles(recording, schedule, strange, roles)


def _refuse_roles(recording: Recording, schedule: Schedule, strange: list[str], roles: list[str]) -> None:
    """Raises ScheduleWithoutRoleError for the first of the names in a schedule that are no roles of its program."""
    for name in strange:
        known = listed(roles, name)
        raise ScheduleWithoutRoleError(f"{recording.name} has no role {name}; its roles are {known}", schedule.site)
