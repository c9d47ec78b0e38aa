"""The command line of `torchrun -m bench.node`: each rank supervises the processes of its steps."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from shlex import join
from typing import Any

import torch

from bench.gpu.report import DIED, OUT_OF_TIME, WORDS, OutOfTimeError
from bench.gpu.summary import summed_up
from bench.gpu.supervise import GRACE, IN_ORDER, NO_DEVICE, Ending, patience, supervised
from bench.node import right, speed, vain
from bench.node.ranks import Launched, Node, Store, joined
from bench.node.report import NodeReport, of_rank
from bench.progress import began, begin, say

Step = tuple[float, Callable[[Node, NodeReport], None]]
STEPS: dict[str, Step] = {
    "rendezvous": (75, right.rendezvous),
    "results": (240, right.results),
    "vain": (60, vain.vain),
    "killed": (60, vain.killed),
    "graphs": (60, right.graphs),
    "speed": (300, speed.speed),
}
"""The steps: seconds that each may take, including the start of its processes, and the function of a rank."""
KILLED = "killed"
RESULTS = Path(__file__).resolve().parent.parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the steps on this rank. Returns the exit code of `bench.gpu` on rank 0, and 0 on the other ranks: torchrun
    ends all ranks as soon as one returns something else, and rank 0 has more to write. Returns 2 if torchrun did not
    start this process or there is no GPU."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(argv)
    try:
        launched = Launched.of(os.environ)
    except KeyError as e:
        say(f"{e} is not set: start it by torchrun --nproc-per-node 8 -m bench.node {join(argv)}")
        return NO_DEVICE
    if args.nodes is not None and (args.nodes < 1 or launched.world % args.nodes):
        say(f"--nodes {args.nodes}: {launched.world} ranks can't be spread evenly over {args.nodes} nodes")
        return NO_DEVICE
    if not args.dry and not torch.cuda.is_available():
        say("torch sees no CUDA device; --dry tries the steps on CPU ranks")
        return NO_DEVICE
    path = _path(args, launched)
    if args.began is not None:
        begin(args.began)
        _here(launched, path, args, join(argv))
        _leave()
    if launched.rank == 0:
        path.unlink(missing_ok=True)
    store = launched.store("bench.node", serves=True)
    for step in [args.step] if args.step else STEPS:
        seconds = patience(STEPS[step][0], not args.dry)
        said = ["--step", step] if args.step is None else []
        mine = of_rank(path, launched.rank) if launched.rank else path
        ending = supervised("bench.node", [*argv, *said, "--began", repr(began())], step, seconds, mine)
        broken = {r: e for r, e in _endings(store, launched, step, ending, seconds).items() if e.verdict}
        if broken and launched.rank == 0:
            _write_broken(path, step, broken)
    if launched.rank:
        store.add("met/the end", 1)
        return IN_ORDER
    _meet(store, launched, "the end", 60)  # this rank may serve the store that the other ranks use
    if args.dry:
        say(f"a dry run on {launched.world} CPU ranks, kernels interpreted: nothing was timed")
    return summed_up(path)


def _path(args: argparse.Namespace, launched: Launched) -> Path:
    out: Path = args.out or Path(os.environ.get("OUT") or RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    device = "dry" if args.dry else re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(0).lower()).strip("-")
    return out / f"node-{device}-{launched.world}.jsonl"


def _here(launched: Launched, path: Path, args: argparse.Namespace, command: str) -> None:
    """Runs a step of a rank, in this process."""
    step, run = args.step, STEPS[args.step][1]
    seconds = patience(STEPS[step][0], not args.dry)
    faulthandler.dump_traceback_later(seconds)
    node = joined(launched, step, args.dry, args.nodes)
    whole = f"torchrun --nproc-per-node {launched.per_node} -m bench.node {command}"
    report = NodeReport(path, step, node, whole, seconds - GRACE)
    report.begun()
    with suppress(OutOfTimeError):
        run(node, report)
    if node.rank == 0:
        node.told("done", "")
    else:  # the process groups need rank 0's store until all ranks are here
        node.heard("done", 0)


def _leave() -> None:
    """Ends the process without cleaning up: the end of a process group would wait for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(IN_ORDER)


def _endings(
    store: Store, launched: Launched, step: str, ending: Ending, seconds: float
) -> dict[int, Ending]:
    """Returns how a step ended on every rank. The rank that the step kills has ended as expected."""
    if step == KILLED and launched.rank == launched.world - 1 and ending.code == -9:
        ending = Ending(IN_ORDER)
    store.set(f"{step}/{launched.rank}", json.dumps(astuple(ending)))
    _meet(store, launched, step, seconds + 3 * GRACE)
    found = {}
    for rank in range(launched.world):
        key = f"{step}/{rank}"
        found[rank] = Ending(*json.loads(store.get(key))) if store.check([key]) else Ending(None, DIED, "is gone")
    return found


def _meet(store: Store, launched: Launched, where: str, patience: float) -> None:
    """Waits until all ranks are here, for at most `patience` seconds."""
    until = time.monotonic() + patience
    store.add(f"met/{where}", 1)
    while store.add(f"met/{where}", 0) < launched.world and time.monotonic() < until:
        time.sleep(0.02)


def _write_broken(path: Path, step: str, broken: dict[int, Ending]) -> None:
    """Writes the record of a step that did not end by itself on some ranks."""
    error = "; ".join(f"rank {rank} {ending.error}" for rank, ending in broken.items())
    verdict = DIED if any(e.verdict == DIED for e in broken.values()) else OUT_OF_TIME
    ok = None if verdict == OUT_OF_TIME else False
    record: dict[str, Any] = {"step": step, "what": "the step as a whole", "ok": ok, "verdict": verdict, "error": error}
    record |= {"wrong_ranks": [*broken]}
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    say(f"{WORDS[verdict]:<7} step {step}: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node 8 -m bench.node", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, description=(sys.modules["bench.node"].__doc__ or ""),
    )  # fmt: skip
    parser.add_argument("--step", choices=STEPS, help="one of the steps alone")
    parser.add_argument("--dry", action="store_true", help="on CPU ranks with gloo, at tiny sizes")
    parser.add_argument("--nodes", type=int, help="number of nodes (default: torchrun's; with --dry, any number)")
    parser.add_argument("--out", type=Path, help="folder for the results (default: $OUT, or bench/results)")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    return parser
