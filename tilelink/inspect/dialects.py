"""How vendors write machine code: what each instruction does, where it may go, and the source that it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """How the machine code of a vendor is written, in regular expressions.

    `kinds`: of instructions, the first that matches. `about`: a comment about the source; `place`: file and line in it.
    `jump`: the label an instruction may go to; `always`: it goes nowhere else; `end`: a kernel or a function ends;
    `last`: a kernel ends. `width`: of a global access; `widths`: its bytes by what that finds.
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
        jump=r"(?:BRA(?!\.U\.ANY)|CALL|JMP)\b.*?(L_\w+)",  # with .U.ANY: lanes take turns at one instruction, no loop
        always=r"(?:BRA|JMP)\s+`?\(",
        end=r"EXIT|RET",
        last=r"EXIT",
        width=r"\.[US]?(8|16|64|128|256)\b",
        widths={"8": 1, "16": 2, "64": 8, "128": 16, "256": 32},
        default_width=4,
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
        instruction=r"\s+((?:[sv]|ds|global|buffer|flat|scratch)_\w+[^;]*)",
        about=r"\s*\.loc\b",
        place=r"([^\s@\[]+\.py):(\d+):\d+",
        jump=r"s_c?branch\w* (\.?\w+)",
        always=r"s_branch\b",
        end=r"s_endpgm|s_setpc",
        last=r"s_endpgm",
        width=r"_(dwordx4|dwordx3|dwordx2|[us]?short|[us]?byte)",
        widths={"dwordx4": 16, "dwordx3": 12, "dwordx2": 8} | dict.fromkeys(["ushort", "sshort", "short"], 2)
        | dict.fromkeys(["ubyte", "sbyte", "byte"], 1),
        default_width=4,
    ),
}  # fmt: skip
"""By Triton's backend."""
KINDS = (*DIALECTS["cuda"].kinds, "other")
ACCESSES = ("async_copy", "global_load", "global_store")
