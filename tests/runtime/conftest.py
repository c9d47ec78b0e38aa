"""What tests of the runtime share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.runtime.cuda_stand_in import StandIn, rank_on
from tests.runtime.processes import Pool
from tests.runtime.ranks import WORLD
from tilelink.runtime.cuda.process_group import CudaProcessGroup


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """A group of one rank, which is this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def on_stand_in(alone: dist.ProcessGroup) -> tuple[CudaProcessGroup, StandIn]:
    """The only rank of its group, on a stand-in."""
    device = StandIn()
    return rank_on(device, alone), device


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A process a rank."""
    made = Pool(WORLD)
    yield made
    made.close()
