"""`torchrun --nproc-per-node 8 -m bench.node` tests TileLink on a node of GPUs, in under 15 minutes.

Each rank is a process with a GPU. Steps check every operator in every schedule, a rank that is killed, a signal that
nobody gives, and graphs. The last step times operators against NCCL with cuBLAS, torch's symmetric-memory operators,
and a decomposition in chunks on two streams. Each step is a process on each rank. A step that hangs is ended on all
ranks and recorded, and the next steps run. docs/benchmarking.md says how to run it and what to send back.

    torchrun --nproc-per-node 8 -m bench.node                # all steps; PYTHONPATH is the checkout
    torchrun --nproc-per-node 8 -m bench.node --step speed   # one
    torchrun --nproc-per-node 2 -m bench.node                # on one card: two processes that share it; no speed
    torchrun --nnodes 2 --nproc-per-node 8 ... -m bench.node # on two nodes, by NVSHMEM (docs/nodes.md)
    torchrun --nproc-per-node 8 -m bench.node --dry          # on a machine without a GPU: CPU ranks with gloo
"""
