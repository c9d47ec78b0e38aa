"""Ranks on the CPU, in one process or a process each; `tilelink.emulator` executes their kernels."""
