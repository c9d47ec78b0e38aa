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
import triton.language as tl

from tilelink.backend.targets import portable


@triton.constexpr_function
def polling(bits, scope, lanes, fence, pair=False, ends=True):
    """PTX that waits until the word of `bits` at $1 is at least $2; $3 is the control block. The result is the low half
    of the word. `lanes`: "one" polls for all; "all" poll, each another word; with "first" one polls for all, and then
    each acquires its own word at $4. `pair`: two words of 64 bits are added up; the result is the low half of the
    second. `ends`: threads of a worker meet behind the poll, so one polls for its block, and a wait that gives up ends
    the worker; else one polls for its warp, and the wait returns when the lane is poisoned."""
    words = {name: word.value for name, word in vars(portable).items() if isinstance(word, tl.constexpr)}
    own = {name: f"[$3+{8 * number}]" for name, number in words.items()}
    poison, progress = 8 * words["POISON"], 8 * words["PROGRESS"]
    me = "%tid.x" if ends else "%laneid"
    leader = "" if lanes == "all" else f"mov.u32 %n, {me}; setp.ne.u32 %p, %n, 0; @%p bra DONE_${{:uid}};"
    own_word = "$4" if lanes == "first" else "$1"
    both = f"ld.relaxed.{scope}.global.s64 %v, [$1+8]; add.s64 %word, %word, %v;"
    widen, narrow = ("mov.b64", "cvt.s32.s64") if bits == 64 else ("cvt.s64.s32", "mov.b32")
    reported = "OVER" if ends else "POLL"  # if another wait of this rank has reported, its poison is on its way
    vote = ["barrier.cta.red.or.pred %p, 0, %over;", "@%p nanosleep.u32 1000000;", "@%p exit;"] if ends else []
    end_together = "\n        ".join(vote)
    return f"""{{
        .reg .pred %p, %over, %late; .reg .b32 %n, %polls; .reg .s{bits} %word;
        .reg .b64 %v, %limit, %why, %what, %due, %seen, %ranks, %rank, %at, %now, %began, %entered;
        mov.u32 %polls, 0;
        mov.u64 %began, 0;
        mov.u64 %entered, 0;
        setp.ne.u32 %over, %polls, 0;
        {leader}
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

        ld.acquire.sys.global.u64 %v, {own["POISON"]};
        setp.ne.u64 %p, %v, 0;
        @%p bra TELL_${{:uid}};
        mov.u64 %now, %globaltimer;
        setp.ne.u32 %p, %polls, 64;
        @%p bra LOOK_${{:uid}};
        mov.u64 %began, %now;
        mov.u64 %entered, %now;
    LOOK_${{:uid}}:
        ld.global.u64 %ranks, {own["RANKS"]};
        ld.global.u64 %due, {own["RUN"]};
        shl.b64 %due, %due, 1;
        add.u64 %due, %due, 1;
        mov.u64 %rank, 0;
        mov.u64 %at, $3;
    NEXT_${{:uid}}:
        setp.ge.u64 %p, %rank, %ranks;
        @%p bra ALL_${{:uid}};
        ld.relaxed.sys.global.u64 %seen, [%at+{progress}];
        setp.lt.u64 %p, %seen, %due;
        @%p bra ABSENT_${{:uid}};
        add.u64 %rank, %rank, 1;
        add.u64 %at, %at, 8;
        bra NEXT_${{:uid}};
    ABSENT_${{:uid}}:
        mov.u64 %entered, %now;
        sub.u64 %v, %now, %began;
        ld.global.u64 %limit, {own["ENTER_NS"]};
        mov.u64 %why, {words["NEVER_ENTERED"]};
        sub.u64 %what, %at, $3;
        add.u64 %what, %what, {progress};
        bra LIMIT_${{:uid}};
    ALL_${{:uid}}:
        sub.u64 %v, %now, %entered;
        ld.global.u64 %limit, {own["STUCK_NS"]};
        mov.u64 %why, {words["STUCK"]};
        sub.u64 %what, $1, $3;
        {widen} %due, $2;
        add.s{bits} %word, %word, $2;
        {widen} %seen, %word;
    LIMIT_${{:uid}}:
        setp.eq.u64 %p, %limit, 0;
        @%p bra POLL_${{:uid}};
        setp.lt.u64 %p, %v, %limit;
        @%p bra POLL_${{:uid}};

        mov.u32 %n, %ctaid.x;
        add.u32 %n, %n, 1;
        cvt.u64.u32 %v, %n;
        atom.relaxed.sys.global.cas.b64 %limit, {own["WAITER"]}, 0, %v;
        setp.ne.u64 %p, %limit, 0;
        @%p bra {reported}_${{:uid}};
        st.global.u64 {own["WORD"]}, %what;
        st.global.u64 {own["EXPECTED"]}, %due;
        st.global.u64 {own["OBSERVED"]}, %seen;
        st.global.u64 {own["REASON"]}, %why;
        ld.global.u64 %why, {own["RANK"]};
        add.u64 %why, %why, 1;
        ld.global.u64 %at, {own["HEAPS"]};
        ld.global.s64 %v, [%at];
        setp.lt.s64 %p, %v, 0;
        @%p mov.b64 %v, $3;
        atom.acq_rel.sys.global.cas.b64 %limit, [%v+{poison}], 0, %why;
        setp.eq.u64 %p, %limit, 0;
        @%p mov.u64 %limit, %why;
        mov.u64 %rank, 0;
    EACH_${{:uid}}:
        setp.ge.u64 %p, %rank, %ranks;
        @%p bra TELL_${{:uid}};
        ld.global.s64 %v, [%at];
        setp.ge.s64 %p, %v, 0;
        @%p st.release.sys.global.u64 [%v+{poison}], %limit;
        add.u64 %rank, %rank, 1;
        add.u64 %at, %at, 8;
        bra EACH_${{:uid}};
    TELL_${{:uid}}:
        ld.global.u64 %at, {own["HOST"]};
        setp.eq.u64 %p, %at, 0;
        @%p bra OVER_${{:uid}};
        st.relaxed.sys.global.u64 [%at], 1;
    OVER_${{:uid}}:
        setp.eq.u32 %over, %polls, %polls;
    DONE_${{:uid}}:
        bar.warp.sync 0xffffffff;
        {end_together}
        ld.acquire.{scope}.global.s{bits} %word, [{own_word}];
        {f"ld.acquire.{scope}.global.s64 %word, [$1+8];" if pair else ""}
        {"fence.proxy.async.global;" if fence else ""}
        {narrow} $0, %word;
    }}"""


@triton.constexpr_function
def returning(bits, scope, lanes, fence):
    """The same as `polling`, for warps that run separate code."""
    return polling(bits, scope, lanes, fence, ends=False)
