"""PTX that waits for a word, and ends the worker when its time is over or the lane is poisoned (docs/protocol.md).

A poll is one load. After 64 polls, tens of microseconds, a pause comes before each, shorter than a poll. Every 64th
looks around: is the lane poisoned, who has not entered the run, how long has it been? While some rank has not entered
(it may be compiling), a wait may take ENTER_NS; after that STUCK_NS, when nobody will give the signal any more. The
report names the rank, by its word of progress, or the word that is waited for. A worker ends as a whole, after a vote
of its threads, because threads that went on alone would wait for the others. It ends a while later, because the copy
engine for tiles may still write to its memory. (Warps that run separate code return when the lane is poisoned, and
their worker stores nothing any more.) The wait poisons the ranks of its node. Ranks of other nodes, whose entries in
the table are negative, have their own bounds.

%began and %entered are set before the first poll: where a path leaves a register undefined, ptxas merges it with
another one, and on an H200 the time of the first look was lost that way.
"""

import triton

from tilelink.backend.targets import portable


@triton.constexpr_function
def polling(bits, scope, lanes, fence, pair=False, ends=True):
    """PTX that waits until the word of `bits` at $1 is at least $2; $3 is the control block. The result is the low half
    of the word. `scope`: of the release that is waited for. `lanes`: "one" polls for all; "all" poll, each another
    word; with "first" one polls for all, and then each acquires its own word at $4. `fence`: a fence for the copy
    engine for tiles follows. `pair`: two words of 64 bits are added up; the result is the low half of the second.
    `ends`: threads of a worker meet behind the poll, so one polls for its block, and a wait that gives up ends the
    worker; else one polls for its warp, and the wait returns when the lane is poisoned."""
    parts = [
        _registers(bits, lanes, ends), _poll(bits, scope, pair), _look_around(), _how_long(bits), _report(ends),
        _poison(), _end(bits, scope, lanes, fence, pair, ends),
    ]  # fmt: skip
    return "{" + "".join(parts) + "}"


@triton.constexpr_function
def _control(word):
    """The address of a word of the control block."""
    return f"[$3+{_offset(word)}]"


@triton.constexpr_function
def _offset(word):
    return 8 * getattr(portable, word).value


@triton.constexpr_function
def _registers(bits, lanes, ends):
    """The registers, and which threads poll; the others go on where polls are done."""
    me = "%tid.x" if ends else "%laneid"
    leader = "" if lanes == "all" else f"mov.u32 %n, {me}; setp.ne.u32 %p, %n, 0; @%p bra DONE_${{:uid}};"
    return f"""
        .reg .pred %p, %over, %late; .reg .b32 %n, %polls; .reg .s{bits} %word;
        .reg .b64 %v, %limit, %why, %what, %due, %seen, %ranks, %rank, %at, %now, %began, %entered;
        mov.u32 %polls, 0;
        mov.u64 %began, 0;
        mov.u64 %entered, 0;
        setp.ne.u32 %over, %polls, 0;
        {leader}
    """


@triton.constexpr_function
def _poll(bits, scope, pair):
    """One poll, until the word is large enough; 63 of 64 times it is followed by the next one."""
    both = f"ld.relaxed.{scope}.global.s64 %v, [$1+8]; add.s64 %word, %word, %v;"
    return f"""
    POLL_${{:uid}}:
        ld.relaxed.{scope}.global.s{bits} %word, [$1];
        {both if pair else ""}
        sub.s{bits} %word, %word, $2;
        setp.ge.s{bits} %p, %word, 0;
        @%p bra DONE_${{:uid}};
        add.u32 %polls, %polls, 1;
        and.b32 %n, %polls, 63;
        setp.ne.u32 %p, %n, 0;
        setp.ge.u32 %late, %polls, 64;
        @%late nanosleep.u32 100;
        @%p bra POLL_${{:uid}};
    """


@triton.constexpr_function
def _look_around():
    """Is the lane poisoned? Which rank is the first that has not entered the run? %at then points at its word of
    progress, as many words behind that of rank 0."""
    return f"""
        ld.acquire.sys.global.u64 %v, {_control("POISON")};
        setp.ne.u64 %p, %v, 0;
        @%p bra HOST_${{:uid}};
        mov.u64 %now, %globaltimer;
        setp.ne.u32 %p, %polls, 64;
        @%p bra LOOK_${{:uid}};
        mov.u64 %began, %now;
        mov.u64 %entered, %now;
    LOOK_${{:uid}}:
        ld.global.u64 %ranks, {_control("RANKS")};
        ld.global.u64 %due, {_control("RUN")};
        shl.b64 %due, %due, 1;
        add.u64 %due, %due, 1;
        mov.u64 %rank, 0;
        mov.u64 %at, $3;
    NEXT_${{:uid}}:
        setp.ge.u64 %p, %rank, %ranks;
        @%p bra ENTERED_${{:uid}};
        ld.relaxed.sys.global.u64 %seen, [%at+{_offset("PROGRESS")}];
        setp.lt.u64 %p, %seen, %due;
        @%p bra ABSENT_${{:uid}};
        add.u64 %rank, %rank, 1;
        add.u64 %at, %at, 8;
        bra NEXT_${{:uid}};
    """


@triton.constexpr_function
def _how_long(bits):
    """How long has the wait been (%v), how long may it be (%limit), and what would a report say: the word (%what, in
    bytes from the control block), what is expected (%due) and observed (%seen), and why it ends (%why)? A limit of 0 is
    none."""
    widen = "mov.b64" if bits == 64 else "cvt.s64.s32"
    return f"""
    ABSENT_${{:uid}}:
        mov.u64 %entered, %now;
        sub.u64 %v, %now, %began;
        ld.global.u64 %limit, {_control("ENTER_NS")};
        mov.u64 %why, {portable.NEVER_ENTERED.value};
        sub.u64 %what, %at, $3;
        add.u64 %what, %what, {_offset("PROGRESS")};
        bra LIMIT_${{:uid}};
    ENTERED_${{:uid}}:
        sub.u64 %v, %now, %entered;
        ld.global.u64 %limit, {_control("STUCK_NS")};
        mov.u64 %why, {portable.STUCK.value};
        sub.u64 %what, $1, $3;
        {widen} %due, $2;
        add.s{bits} %word, %word, $2;
        {widen} %seen, %word;
    LIMIT_${{:uid}}:
        setp.eq.u64 %p, %limit, 0;
        @%p bra POLL_${{:uid}};
        setp.lt.u64 %p, %v, %limit;
        @%p bra POLL_${{:uid}};
    """


@triton.constexpr_function
def _report(ends):
    """The first wait of this rank that gives up reports. If another one has reported, its poison is on its way."""
    return f"""
        mov.u32 %n, %ctaid.x;
        add.u32 %n, %n, 1;
        cvt.u64.u32 %v, %n;
        atom.relaxed.sys.global.cas.b64 %limit, {_control("WAITER")}, 0, %v;
        setp.ne.u64 %p, %limit, 0;
        @%p bra {"OVER" if ends else "POLL"}_${{:uid}};
        st.global.u64 {_control("WORD")}, %what;
        st.global.u64 {_control("EXPECTED")}, %due;
        st.global.u64 {_control("OBSERVED")}, %seen;
        st.global.u64 {_control("REASON")}, %why;
    """


@triton.constexpr_function
def _poison():
    """The poison is the first rank of the node that reported, plus 1; all ranks of the node get it. Then the host of
    this rank is told, if it waits for that."""
    return f"""
        ld.global.u64 %why, {_control("RANK")};
        add.u64 %why, %why, 1;
        ld.global.u64 %at, {_control("HEAPS")};
        ld.global.s64 %v, [%at];
        setp.lt.s64 %p, %v, 0;
        @%p mov.b64 %v, $3;
        atom.acq_rel.sys.global.cas.b64 %limit, [%v+{_offset("POISON")}], 0, %why;
        setp.eq.u64 %p, %limit, 0;
        @%p mov.u64 %limit, %why;
        mov.u64 %rank, 0;
    EACH_${{:uid}}:
        setp.ge.u64 %p, %rank, %ranks;
        @%p bra HOST_${{:uid}};
        ld.global.s64 %v, [%at];
        setp.ge.s64 %p, %v, 0;
        @%p st.release.sys.global.u64 [%v+{_offset("POISON")}], %limit;
        add.u64 %rank, %rank, 1;
        add.u64 %at, %at, 8;
        bra EACH_${{:uid}};
    HOST_${{:uid}}:
        ld.global.u64 %at, {_control("HOST")};
        setp.eq.u64 %p, %at, 0;
        @%p bra OVER_${{:uid}};
        st.relaxed.sys.global.u64 [%at], 1;
    OVER_${{:uid}}:
        setp.eq.u32 %over, %polls, %polls;
    """


@triton.constexpr_function
def _end(bits, scope, lanes, fence, pair, ends):
    """The threads meet; if the wait is over, the worker ends. Otherwise each thread acquires its word."""
    narrow, own_word = "cvt.s32.s64" if bits == 64 else "mov.b32", "$4" if lanes == "first" else "$1"
    vote = ["barrier.cta.red.or.pred %p, 0, %over;", "@%p nanosleep.u32 1000000;", "@%p exit;"] if ends else []
    end_together = "\n        ".join(vote)
    return f"""
    DONE_${{:uid}}:
        bar.warp.sync 0xffffffff;
        {end_together}
        ld.acquire.{scope}.global.s{bits} %word, [{own_word}];
        {f"ld.acquire.{scope}.global.s64 %word, [$1+8];" if pair else ""}
        {"fence.proxy.async.global;" if fence else ""}
        {narrow} $0, %word;
    """


@triton.constexpr_function
def returning(bits, scope, lanes, fence):
    """The same as `polling`, for warps that run separate code."""
    return polling(bits, scope, lanes, fence, ends=False)
