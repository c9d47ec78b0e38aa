"""Stores and notifications to all ranks of a node at once, and loads of sums over them, for fabrics that multicast and
add: PTX's multimem, from Hopper on.

`multicast` is the address at which the heaps of these ranks lie one over the other (CUDA's multicast objects). A store
there arrives at the same place of every heap. A load there returns the sum of this place over all heaps. One
instruction moves 16 bytes, whatever the dtype.
"""

import triton
import triton.language as tl

_STORE = tl.constexpr("""{
    .reg .pred %here;
    setp.ne.b32 %here, $6, 0;
    @%here multimem.st.relaxed.sys.global.v4.f32 [$1], {$2, $3, $4, $5};
    mov.b32 $0, 0;
}""")


@triton.constexpr_function
def sum_of(elements):
    """PTX that loads 16 bytes of the sum over all heaps, as `elements`; elements that do not exist are 0."""
    return f"""{{
        .reg .pred %here; setp.ne.b32 %here, $5, 0;
        mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;
        @%here multimem.ld_reduce.relaxed.sys.global.add.{elements} {{$0, $1, $2, $3}}, [$4];
    }}"""


@triton.constexpr_function
def by_one_thread(instruction):
    """PTX by which the first thread of a block carries out an instruction, while the others go on."""
    return f"""{{
        .reg .pred %first; .reg .b32 %thread;
        mov.u32 %thread, %tid.x; setp.eq.u32 %first, %thread, 0;
        @%first {instruction}
        mov.b32 $0, 0;
    }}"""


@triton.jit
def _halves(words):
    """Splits neighbours along the last dimension: the even ones, the odd ones."""
    shape: tl.constexpr = words.shape
    n: tl.constexpr = len(shape)
    rows: tl.constexpr = shape[0] if n == 2 else 1
    even, odd = tl.split(words.reshape([rows, shape[n - 1] // 2, 2]))
    if n == 1:
        even, odd = even.reshape([shape[0] // 2]), odd.reshape([shape[0] // 2])
    return even, odd


@triton.jit
def _words(block):
    """A block of one dimension or two as int32 words, each with as many elements as fit into it."""
    bits: tl.constexpr = block.dtype.primitive_bitwidth
    if bits == 32:
        words = block.to(tl.int32, bitcast=True)
    elif bits == 16:
        low, high = _halves(block.to(tl.uint16, bitcast=True))
        words = (low.to(tl.uint32) | (high.to(tl.uint32) << 16)).to(tl.int32, bitcast=True)
    else:
        tl.static_assert(bits == 8, "elements of 1, 2 or 4 bytes")
        low, high = _halves(block.to(tl.uint8, bitcast=True))
        low, high = _halves(low.to(tl.uint32) | (high.to(tl.uint32) << 8))
        words = (low | (high << 16)).to(tl.int32, bitcast=True)
    return words


@triton.jit
def multicast_store(multicast, at, offsets, block, here):
    """Stores a block to the place `at` bytes into the heap of every rank. Its elements have 1, 2 or 4 bytes, its last
    dimension a multiple of 16 bytes. `offsets`: elements from that place to each 16 bytes of the block; `here`: which
    of these exist (True: all)."""
    even, odd = _halves(_words(block))
    first, third = _halves(even)
    second, fourth = _halves(odd)
    base = tl.cast(multicast + at, tl.pointer_type(block.dtype))
    exists = ((tl.zeros(first.shape, tl.int32) == 0) & here).to(tl.int32)
    operands = [base + offsets, first, second, third, fourth, exists]
    tl.inline_asm_elementwise(_STORE, "=r,l,r,r,r,r,r,~{memory}", operands, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _together(even, odd):
    """Joins neighbours along the last dimension that `_halves` has split."""
    n: tl.constexpr = len(even.shape)
    rows: tl.constexpr = even.shape[0] if n == 2 else 1
    both = tl.join(even, odd).reshape([rows, 2 * even.shape[n - 1]])
    if n == 1:
        both = both.reshape([2 * even.shape[0]])
    return both


@triton.jit
def multicast_sum(multicast, at, offsets, here, dtype: tl.constexpr):
    """The sum of a block over the heaps of all ranks (float32, float16 or bfloat16), in its dtype. The arguments are
    the same as of `multicast_store`; elements that do not exist are 0. The ranks stored to other addresses of this
    memory than the one that is read, so a fence of the alias proxy comes first."""
    tl.inline_asm_elementwise(
        "fence.proxy.alias; mov.b32 $0, $1;", "=r,r,~{memory}", [tl.program_id(0)], tl.int32, is_pure=False, pack=1
    )
    exists = ((tl.zeros(offsets.shape, tl.int32) == 0) & here).to(tl.int32)
    operands = [tl.cast(multicast + at, tl.pointer_type(dtype)) + offsets, exists]
    halves: tl.constexpr = "acc::f32.v4.f16x2" if dtype == tl.float16 else "acc::f32.v4.bf16x2"
    asm: tl.constexpr = sum_of("v4.f32" if dtype == tl.float32 else halves)
    first, second, third, fourth = tl.inline_asm_elementwise(
        asm, "=&r,=&r,=&r,=&r,l,r,~{memory}", operands, (tl.int32, tl.int32, tl.int32, tl.int32),
        is_pure=False, pack=1,
    )  # fmt: skip
    words = _together(_together(first, third), _together(second, fourth))
    if dtype.primitive_bitwidth == 32:
        block = words.to(dtype, bitcast=True)
    else:
        low, high = (words & 0xFFFF).to(tl.uint16), (words >> 16).to(tl.uint16)
        block = _together(low, high).to(dtype, bitcast=True)
    return block


@triton.jit
def count_at_all(word):
    """Adds 1 to a word of every rank, with release order, when all threads have done their stores. These went to other
    addresses of the same memory than the ones it is read at, so a fence of the alias proxy comes first."""
    tl.debug_barrier()
    bits: tl.constexpr = "u64" if word.dtype.element_ty.primitive_bitwidth == 64 else "u32"
    add: tl.constexpr = "@%first multimem.red.release.sys.global.add." + bits + " [$1], 1;"
    asm: tl.constexpr = by_one_thread("fence.proxy.alias;\n" + add)
    tl.inline_asm_elementwise(asm, "=r,l,~{memory}", [word], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def multicast_notify(multicast, at, cell):
    """Adds 1 to a signal of every rank. The signals begin `at` bytes into the heap."""
    count_at_all(tl.cast(multicast + at, tl.pointer_type(tl.int32)) + cell)
