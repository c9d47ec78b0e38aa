"""`python -m bench.gpu`: what a machine with a GPU has to say of us, in under 12 minutes.

Is what runs on virtual ranks of one GPU right, in every dtype and schedule, in graphs, after waits in vain; what does a
call cost the host; how fast is the GEMM against cuBLAS? Each step is a process of its own, so that one that fails or
hangs leaves the others alone; the most telling come first; each finding is written down at once, as a JSON line.

    python3 -m bench.gpu                # all steps, with the python3 that has torch; PYTHONPATH is the checkout
    python3 -m bench.gpu --step speed   # one
    python3 -m bench.gpu --dry          # on a machine without a GPU: the same steps on CPU ranks, at tiny sizes
"""
