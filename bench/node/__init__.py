"""`torchrun --nproc-per-node 8 -m bench.node`: what a node of GPUs has to say of us, in under 15 minutes.

Is every operator right in every schedule, where each rank is a process with a GPU; what becomes of a rank that is
killed, and of a signal that nobody gives; graphs; then speed, against NCCL with cuBLAS, torch's symmetric-memory
operators, and a decomposition in chunks on two streams. Each step is a process of each rank; one that hangs is ended on
all ranks, has a record, and the others run. docs/benchmarking.md says how to run it and what to send back.

    torchrun --nproc-per-node 8 -m bench.node                # all steps; PYTHONPATH is the checkout
    torchrun --nproc-per-node 8 -m bench.node --step speed   # one
    torchrun --nproc-per-node 2 -m bench.node                # on one card: two processes that share it; no speed
    torchrun --nnodes 2 --nproc-per-node 8 ... -m bench.node # on two nodes, by NVSHMEM (docs/nodes.md)
    torchrun --nproc-per-node 8 -m bench.node --dry          # on a machine without a GPU: CPU ranks with gloo
"""
