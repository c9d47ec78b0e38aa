"""Primitives for GPUs as the interpreter can run them: their inline assembly replaced by atomics that mean the same, so
that all that stands around it is executed: who is told what, how far is waited, what is zeroed. The assembly itself is
the gates' business."""

from __future__ import annotations

import re

POLLING = '''\
    missing = tl.minimum(tl.atomic_add(word, 0, sem="acquire", scope=scope) - expected, 0)
    while tl.sum(tl.zeros([1], tl.int64) + missing) < 0:
        missing = tl.minimum(tl.atomic_add(word, 0, sem="acquire", scope=scope) - expected, 0)
    return missing.to(tl.int32)
'''
LOOKING = '''\
    return tl.atomic_add(word, 0, sem="acquire", scope=scope)
'''
TELLING = 'tl.atomic_xchg(word, progress, sem="release", scope="sys")'
SOME_SEEN = '''\
    wait(control, first, least, scope)
    seen = tl.atomic_add(words, 0, sem="acquire", scope=scope)
'''
NOTIFYING = 'tl.atomic_add(signal, 1, sem="release", scope=scope)'

MEANINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "cuda": (
        (r"    bits: tl\.constexpr = word(?:.*\n)+?    return .*\n", POLLING),
        (r"    asm: tl\.constexpr = polling\(32(?:.*\n)+?    seen = .*\n", SOME_SEEN),
        (r"_zero\(count\)", "0 * count"),
        (r"    (?:release|store): tl\.constexpr = .*\n", ""),
        (r"    tl\.inline_asm_elementwise\(release, .*\n", ""),
        (r"tl\.inline_asm_elementwise\(\n? +store, (?:.*\n)+?        \)", TELLING),
        (r"    (?:add|asm): tl\.constexpr = .*(?:red\.|add\.u64).*\n", ""),
        (r'tl\.inline_asm_elementwise\(asm, "=r,l,~\{memory\}", \[signal\].*\)', NOTIFYING),
    ),
    "amd": (
        (r"    dtype = word(?:.*\n)+?    return .*\n", LOOKING),
        (r'    asm: tl\.constexpr = "s_waitcnt.*\n    tl\.inline_asm.*\n', "    pass\n"),
        (r'    asm: tl\.constexpr = "v_readfirst.*\n', ""),
        (r'return tl\.inline_asm_elementwise\(asm, "=s,v,.*', "return seen * 0"),
    ),
}
"""Patterns of a module's assembly, each with what it means."""


def stand_in(module: str, text: str) -> str | None:
    """The text of a module of primitives without the assembly of its signals; None where some of that was not
    recognised, or there is no stand-in for the module."""
    if module not in MEANINGS:
        return None
    for pattern, meaning in MEANINGS[module]:
        text, count = re.subn(pattern, lambda _, m=meaning: m, text)
        if not count:
            return None
    return text
