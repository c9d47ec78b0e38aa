"""Analyses of tile programs: events, checks, simulations, timelines and drawings."""
