"""Validation of the performance model: compares published with predicted times (`python -m bench.validation`)."""
