"""Simulation: a program's own events on a machine that is described by numbers (docs/performance-model.md)."""

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
