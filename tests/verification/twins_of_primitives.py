"""Mistakes inside of a primitive, which no execution of programs shows: the gates find them in what is compiled."""

from __future__ import annotations

from tests.backend.edited import in_function
from tests.verification.cases import Case, twins
from tests.verification.primitives import Primitives, TwoDots

POLLED = r"asm: tl\.constexpr = polling\(bits, scope, lanes, fence\)"
FENCED_FIRST = 'asm: tl.constexpr = "fence.proxy.async.global;" + polling(bits, scope, lanes, False)'
BARRIER = r"^ +tl\.debug_barrier\(\)\n"
RELEASE = r'"red\.release\." \+ scope \+ "\.global\." \+ add \+ " \[\$1\], 1;"'

CASES: list[Case] = [
    *twins("signal-without-barrier", "store, then signal by thread 0 without a CTA barrier before it",
           "gates", "barrier", 4, Primitives(in_function("notify", BARRIER, "")), Primitives(),
           says="the program says 5, found 4"),
    *twins("no-proxy-fence", "remote data read through the async proxy (TMA) without a proxy fence",
           "gates", "fence", 4, Primitives(in_function("wait", '"one", tma', '"one", False')),
           Primitives(),
           says="the program says 2, found 1"),
    *twins("fence-before-the-acquire", "a stage recycled without a proxy fence behind what says that it is free",
           "gates", "fence", 4, Primitives(in_function("_until", POLLED, FENCED_FIRST)), Primitives(),
           says="the program says 2, found 0"),
    *twins("two-dots-into-one-sum", "two dots into one accumulator in a pipelined loop, compiled wrongly",
           "gates", "two_dots", 1, TwoDots(pipelined=True), TwoDots(pipelined=False),
           says="a sum is read before the last matrix instruction into it is done"),
    *twins("flag-by-volatile-store", "a flag set by a volatile store",
           "gates", "release", 4,
           Primitives(in_function("notify", RELEASE, '"st.volatile.global.u32 [$1], 1;"')), Primitives(),
           says="the program says 4, found 3"),
]  # fmt: skip
