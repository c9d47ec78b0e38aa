"""`python -m bench.gpu` tests TileLink on a machine with a GPU, in under 14 minutes.

Steps check results on virtual ranks of one GPU, in every dtype and schedule, in graphs and after aborted waits. They
measure what a call costs the host, and time the GEMM against cuBLAS. Each step is its own process, so that the others
run if it fails or hangs. The most important steps come first. Each finding is written at once, as a JSON line.

    python3 -m bench.gpu                # all steps, with the python3 that has torch; PYTHONPATH is the checkout
    python3 -m bench.gpu --step speed   # one
    python3 -m bench.gpu --dry          # on a machine without a GPU: the same steps on CPU ranks, at tiny sizes
"""
