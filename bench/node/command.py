"""The command line of `torchrun -m bench.node`: each rank supervises the processes of its steps."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from shlex import join

import torch

from bench import steps
from bench.gpu.place import Place, dry
from bench.gpu.report import DIED, OUT_OF_TIME
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the steps on this rank. Returns the exit code of `bench.gpu` on rank 0, and 0 on the other ranks: torchrun
    ends all ranks as soon as one returns something else, and rank 0 has more to write. Returns 2 if torchrun did not
    start this process or there is no GPU."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = steps.parser("torchrun --nproc-per-node 8 -m bench.node", STEPS)
    parser.add_argument("--nodes", type=int, help="number of nodes (default: torchrun's; with --dry, any number)")
    args = parser.parse_args(argv)
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
    command = f"torchrun --nproc-per-node {launched.per_node} -m bench.node {join(argv)}"
    device = "dry" if args.dry else steps.slug(torch.cuda.get_device_name(0))
    path = steps.folder(args.out) / f"node-{device}-{launched.world}.jsonl"
    if args.began is not None:
        begin(args.began)
        _here(launched, path, args, command)
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
            steps.add_ending(path, step, _recorded(args.dry), command, _together(broken), wrong_ranks=[*broken])
    if launched.rank:
        store.add("met/the end", 1)
        return IN_ORDER
    _meet(store, launched, "the end", 60)  # this rank may serve the store that the other ranks use
    if args.dry:
        say(f"a dry run on {launched.world} CPU ranks, kernels interpreted: nothing was timed")
    return summed_up(path)


def _here(launched: Launched, path: Path, args: argparse.Namespace, command: str) -> None:
    """Runs a step of a rank, in this process."""
    step, run = args.step, STEPS[args.step][1]
    seconds = patience(STEPS[step][0], not args.dry)
    with steps.watched(seconds):
        node = joined(launched, step, args.dry, args.nodes)
        steps.run_here(run, node, NodeReport(path, step, node, command, seconds - GRACE))
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


def _recorded(is_dry: bool) -> Place:
    """Returns the place of a rank as records need it: its name, and whether it is a GPU. A real place of a GPU would
    make a CUDA context in this process, which takes memory from the steps."""
    return dry() if is_dry else replace(dry(), device=torch.cuda.get_device_name(0), on_gpu=True)


def _together(broken: dict[int, Ending]) -> Ending:
    """Returns one ending for ranks on which a step did not end by itself."""
    error = "; ".join(f"rank {rank} {ending.error}" for rank, ending in broken.items())
    return Ending(None, DIED if any(e.verdict == DIED for e in broken.values()) else OUT_OF_TIME, error)
