"""What is run before a container starts."""

from collections.abc import Sequence
from dataclasses import dataclass

from plugin.core.device import Device, natural
from plugin.core.plan import PreStartPlan
from plugin.core.rendering import Renderer, distinct


@dataclass(frozen=True, slots=True)
class Run:
    """One program to run. `device`: the id of the device that it is for; empty: for all of them."""

    command: tuple[str, ...]
    device: str = ""


def runs(
    plan: PreStartPlan, resource: str, asked: Sequence[str], devices: Sequence[Device]
) -> tuple[Run, ...]:
    """The programs for a container: one for each device where the command names it, else one.

    Raises RenderError.
    """
    renderer = Renderer("pre_start", resource, devices, tuple(sorted(distinct(asked), key=natural)))
    made: list[Run] = []
    for variables in renderer.scopes(*plan.command):
        device = variables.get("device")
        command = tuple(
            renderer.render(argument, variables, f"exec[{index}]")
            for index, argument in enumerate(plan.command)
        )
        made.append(Run(command, device.id if isinstance(device, Device) else ""))
    return tuple(made)
