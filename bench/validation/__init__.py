"""Validation of the performance model: what was published beside what is predicted (`python -m bench.validation`)."""
