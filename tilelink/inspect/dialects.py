"""How vendors write machine code: what each instruction does, where it may go, and the source that it comes from; and
the assembly in our primitives, as TTGIR has it. Only this file knows the assemblers."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """The machine code of a vendor, as regular expressions.

    `kinds`: kinds of instructions; the first that matches counts. `about`: a comment about the source; `place`: file
    and line in it. `jump`: the labels an instruction may go to; `always`: it goes nowhere else; `end`: a kernel or a
    function ends; `last`: a kernel ends. `width`: the width of a global access; `widths`: bytes for what `width` finds.

    For gates: `assembly`: what the assembly of a primitive does, each with its `scope`; `scopes`: our names for these
    scopes. `signals`: the instructions for the same, in PTX or GCN. `matrix`: matrix instructions with their shapes,
    and the number of threads that carry out one together.
    """

    kinds: dict[str, str]
    label: str
    instruction: str
    about: str
    place: str
    jump: str
    always: str
    end: str
    last: str
    width: str
    widths: dict[str, int]
    default_width: int
    assembly: dict[str, str]
    scopes: dict[str, str]
    signals: dict[str, str]
    matrix: tuple[tuple[str, int], ...]

    def bytes_of(self, access: str) -> int:
        """The bytes that an access to global memory moves for a thread, by the text of its instruction."""
        wide = re.findall(self.width, access)
        return self.widths[wide[-1]] if wide else self.default_width


DIALECTS = {
    "cuda": Dialect(
        kinds={
            "matrix": r"UTC\w*MMA|[A-Z]G?MMA\b",
            "tma_load": r"UTMALDG|UBLKCP\.S",
            "tma_store": r"UTMASTG|UTMAREDG|UBLKRED|UBLKCP\.G",
            "async_copy": r"LDGSTS",
            "global_load": r"LDG|LD\b",
            "global_store": r"STG|ST\b",
            "atomic": r"ATOM|REDG?\b",
            "shared_load": r"LDS",
            "shared_store": r"STS",
            "tensor_memory": r"LDTM|STTM|UTCCP|UTCATOM",
            "local": r"LDL|STL",
            "barrier": r"BAR\b",
            "mbarrier": r"SYNCS|UTCBAR",
            "system_fence": r"MEMBAR\S*\.SYS",
            "proxy_fence": r"FENCE\.VIEW",
            "fence": r"MEMBAR",
            "wait": r"WARPGROUP|DEPBAR|LDGDEPBAR",
            "branch": r"BRA|BRX|JMP|CALL|RET|EXIT|BSSY|BSYNC|BREAK|WARPSYNC|YIELD|NANOSLEEP|BPT|ENDCOLLECTIVE",
            "floating_point": r"[FHD](ADD|MUL|FMA|SETP|SET|SEL|MNMX|CHK)|MUFU|F2|I2F|FRND",
            "uniform": r"U|R2UR|S2UR|LDCU|VOTEU",
            "integer": r"I|V|LEA|LOP|SHF|SEL|MOV|CS2R|PRMT|POPC|FLO|BREV|BMSK|SGXT|PLOP|P2R|R2P",
        },
        label=r"\s*\.?(L_\w+):",
        instruction=r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;",
        about=r"\s*//## File",
        place=r'"([^"]*)", line (\d+)',
        # .U.ANY is no loop: lanes take turns at one instruction. BRX names a table of targets
        jump=r"(?:^(?:BRA(?!\.U\.ANY)|CALL|JMP)\b.*?|BRANCH_TARGETS \.|,\.)(L_\w+)",
        always=r"(?:BRA|JMP)\s+`?\(|BRX\b",
        end=r"EXIT|RET",
        last=r"EXIT",
        width=r"\.[US]?(8|16|64|128|256)\b",
        widths={"8": 1, "16": 2, "64": 8, "128": 16, "256": 32},
        default_width=4,
        assembly={
            # a label, a load of the awaited word, a branch back, and a meeting of the lanes behind that
            "poll": r"(\w+_\$\{:uid\}):\s+ld\.relaxed\S+ \S+ \[\$1\](?s:.*)\bbra \1(?s:.*)bar\.warp\.sync",
            "acquire": r"ld\.acquire\.(?P<scope>\w+)\S* \S+ \[\$[14]\]",
            "release": r"(?:red\.release|fence\.acq_rel)\.(?P<scope>\w+)",
            "fence": r"fence\.proxy\.async(?!(?s:.*)ld\.acquire)",  # before an acquire it orders nothing
            "complete": r"cp\.async\.bulk\.wait_group 0",
        },
        scopes={},
        signals={
            "acquire": r"\bld\.acquire\S* %word|\batom\.\S*acq\S*\.add",
            "release": r"\bred\.release|\bfence\.acq_rel|\batom\.\S*(?:release|acq_rel)\S*\.add",
            "barrier": r"\bbar(?:rier)?\.(?:cta\.)?sync",
            "fence": r"\bfence\.proxy\.async\.global",
            "complete": r"\bcp\.async\.bulk\.wait_group\s+0",
            "bulk": r"\bcp\.async\.bulk\.tensor\S*\.global\.shared",
        },
        matrix=(
            (r"wgmma\.mma_async\S*\.m(\d+)n(\d+)k(\d+)", 128),
            (r"\bmma\.sync\S*\.m(\d+)n(\d+)k(\d+)", 32),
        ),
    ),
    "hip": Dialect(
        kinds={
            "matrix": r"v_s?mfma",
            "async_copy": r"(buffer|global)_load\S* .*\blds\b",
            "global_load": r"(global|buffer|flat)_load",
            "global_store": r"(global|buffer|flat)_store",
            "atomic": r"(global|buffer|flat)_atomic",
            "shared_load": r"ds_(read|load)",
            "shared_store": r"ds_(write|store)",
            "local": r"scratch_",
            "barrier": r"s_barrier",
            "system_fence": r"buffer_(wbl2|inv) sc0 sc1",
            "fence": r"buffer_(wbl2|inv)",
            "wait": r"s_waitcnt",
            "branch": r"s_(c?branch|endpgm|setpc|swappc|sleep)",
            "floating_point": r"v_\w*(bf16|f16|f32|f64)",
            "uniform": r"s_|v_readfirstlane|v_readlane",
            "integer": r"v_",
        },
        label=r"(\.?\w+):",
        instruction=r"\s*((?:[sv]|ds|global|buffer|flat|scratch)_\w+[^;]*)",
        about=r"\s*\.loc\b",
        place=r"([^\s@\[]+\.py):(\d+):\d+",
        jump=r"^s_c?branch\w* (\.?\w+)",
        always=r"s_branch\b",
        end=r"s_endpgm|s_setpc",
        last=r"s_endpgm",
        width=r"_(dwordx4|dwordx3|dwordx2|[us]?short|[us]?byte)",
        widths={"dwordx4": 16, "dwordx3": 12, "dwordx2": 8} | dict.fromkeys(["ushort", "sshort", "short"], 2)
        | dict.fromkeys(["ubyte", "sbyte", "byte"], 1),
        default_width=4,
        assembly={
            "acquire": r"buffer_inv (?P<scope>sc0 sc1|sc1)",
            "stored": r"\As_waitcnt vmcnt\(0\)\s+buffer_wbl2 (?P<scope>sc0 sc1|sc1)\s+s_waitcnt vmcnt\(0\)",
        },
        scopes={"sc1": "gpu", "sc0 sc1": "sys"},
        signals={"acquire": r"\bbuffer_inv\b", "release": r"\bbuffer_wbl2\b", "barrier": r"\bs_barrier\b"},
        matrix=((r"v_mfma_\w+?_(\d+)x(\d+)x(\d+)", 64),),
    ),
}  # fmt: skip
"""Dialects by Triton's backend."""
KINDS = (*DIALECTS["cuda"].kinds, "other")
ACCESSES = ("async_copy", "global_load", "global_store")
