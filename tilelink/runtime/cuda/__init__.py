"""Worlds of ranks on CUDA devices: one process a rank, or several virtual ranks on one GPU.

Nothing here is imported, and CUDA is not touched, before a world on a GPU is made.
"""
