"""Functions of users that programs apply to their sums."""

import triton
import triton.language as tl


@triton.jit
def half(x):
    return x / 2


@triton.jit
def twice(x):
    return x * 2


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def quartered_gelu(x):
    return gelu(x / 4)


@triton.jit
def difference(gate, up):
    return gate - 2 * up
