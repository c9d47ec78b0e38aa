"""Turns tile programs into Triton source."""
