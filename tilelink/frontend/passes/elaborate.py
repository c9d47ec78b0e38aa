"""Makes a role of each launch: reads its tile function for the tiles that the schedule gives it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.errors import NotUnderstoodError, ScheduleError, TileSizeError, counted
from tilelink.frontend.elaboration.statements import Elaborator
from tilelink.frontend.ir import Role, TileProgram
from tilelink.frontend.routed_walk import make_routed_walk
from tilelink.frontend.schedule import CopyEngine, Epilogue, Resource, Schedule, SMs
from tilelink.frontend.values import TileValue
from tilelink.frontend.walk import check_across_parts, make_walk
from tilelink.language import Launch, Recording


@dataclass(frozen=True)
class Binding:
    """The sources of a tile program: what its program recorded, and the schedule."""

    recording: Recording
    schedule: Schedule

    def launch(self, role: str) -> Launch:
        return next(launch for launch in self.recording.launches if launch.function.name == role)

    def resource(self, launch: Launch) -> Resource:
        """The resource of a launch. Its `whole` has the member's names of dimensions that differ between members."""
        resource = self.schedule.of(launch.scheduled)
        if isinstance(resource, SMs) and launch.own:
            return replace(resource, whole=tuple((launch.own.get(d, d), n) for d, n in dict(resource.whole).items()))
        return resource


def elaborate(program: TileProgram, binding: Binding) -> TileProgram:
    """The program with a role for each launch, except launches in the epilogue of another role."""
    for launch in binding.recording.launches:
        resource = binding.resource(launch)
        if not isinstance(resource, Epilogue):
            program, role = with_role(program, binding, launch, resource)
            program = replace(program, roles=(*program.roles, role))
    return program


def with_role(
    program: TileProgram,
    binding: Binding,
    launch: Launch,
    resource: SMs | CopyEngine,
    taken: frozenset[str] = frozenset(),
) -> tuple[TileProgram, Role]:
    """The program with the Triton functions that a launch calls, and the launch as a role. `taken`: names that the
    role's variables must not have, because the role goes into another role."""
    function, recording, cut = launch.function, binding.recording, frozenset(program.cut)
    if resource.order.parts is None:
        check_across_parts(function.name, launch.space, resource, launch.site)
    if launch.space.route is None:
        found, axes = make_walk(function.name, launch.space, resource, cut, launch.site, steps=function.takes_step)
    else:
        found, axes = make_routed_walk(function.name, launch.space, resource, launch.site, function.takes_step)
    for parameter in launch.arguments:
        for word in launch.tensors(parameter):
            if word not in recording.tensors:
                raise NotUnderstoodError(f"{parameter}: {word.name} is no tensor of this program", launch.site)
    tile = TileValue(found.ranges, axes, found.sent)
    elaborator = Elaborator(program, recording, launch, resource, tile, taken)
    body = elaborator.body()
    for dim in sorted(set(dict(resource.whole)) - elaborator.wholes) if not taken else ():
        raise ScheduleError(f"{function.name} takes no block over the whole of {dim}: leave it out", launch.site)
    if elaborator.step is not None and not elaborator.stepped and not taken:
        dims = launch.space.dims
        raise TileSizeError(
            f"{function.name} takes a tile of {counted(len(dims), 'size')} ({', '.join(dims)}), and this one is "
            f"{resource.tile}: no loop of {function.name} takes a step from the schedule, so leave the last one out",
            launch.site,
        )
    role = Role(function.name, resource, found, body, launch.site, scheduled=launch.scheduled)
    return replace(program, functions=tuple(elaborator.functions.items())), role
