"""Tensor descriptors: the arguments by which a kernel loads whole blocks of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton.tools.tensor_descriptor import TensorDescriptor

from tilelink.backend.pipelining import ROOM
from tilelink.backend.targets import Target

if TYPE_CHECKING:
    import torch


def descriptor(tensor: torch.Tensor, block: tuple[int, ...], target: Target) -> Any:
    """The descriptor of a tensor whose last dimension is contiguous, for blocks of a shape, in the form that kernels
    for a target take. A block with two more dimensions than the tensor has lines that end early (`ROOM`). A descriptor
    of Gluon also has the layout of a block in shared memory, as matrix instructions read it."""
    described = tensor, list(tensor.shape), list(tensor.stride()), list(block)
    if len(block) > tensor.dim():
        line = tensor.stride(0)
        shape, strides = [ROOM + 1, ROOM + 1, ROOM, tensor.shape[1]], [2**64 // ROOM - line, line, line, 1]
        described = tensor, shape, strides, list(block)
    if not target.specialised:
        return TensorDescriptor(*described)
    from triton.experimental.gluon.language import NVMMASharedLayout  # here: no other form needs Gluon
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    size = tensor.element_size()
    swizzled = min(128, block[-1] * size)
    return GluonDescriptor(*described, NVMMASharedLayout(swizzled, element_bitwidth=8 * size, rank=len(block)))
