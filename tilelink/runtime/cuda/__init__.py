"""Worlds of ranks on CUDA devices: a process a rank, or several virtual ranks on one GPU.

Nothing here is imported, and nothing of CUDA is touched, before a world on a GPU is made.
"""
