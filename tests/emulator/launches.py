"""Launches for tests, with a region a tensor."""

from tilelink.emulator import Execution, Region, interpreted


def launch_one(execution: Execution, kernel, tensors: dict, grid: int = 1, rank: int = 0, **constants):
    """Launches with one region per tensor."""
    regions = [Region(name.removesuffix("_ptr"), rank, tensor) for name, tensor in tensors.items()]
    execution.launch(interpreted(kernel), grid, tensors | constants, regions, rank)


def run_one(kernel, tensors: dict, grid: int = 1, seed: int = 0, **constants) -> Execution:
    execution = Execution(1, seed=seed)
    execution.run(lambda rank: launch_one(execution, kernel, tensors, grid, rank, **constants))
    return execution
