"""Simulation: the events of a program, timed on a machine that numbers describe (docs/performance-model.md)."""

from tilelink.analysis.simulate.prediction import (
    FUSED,
    JUDGED,
    OUTSIDE,
    UNFUSED,
    Prediction,
    predict,
    simulate,
    steps_of,
)

__all__ = ["FUSED", "JUDGED", "OUTSIDE", "UNFUSED", "Prediction", "predict", "simulate", "steps_of"]
