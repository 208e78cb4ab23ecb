"""`--cluster auto`: the machine that a job runs on, read from where it says what it is."""

from __future__ import annotations

from planner.request.machine.detect import AUTO, Detected, detect_cluster

__all__ = ["AUTO", "Detected", "detect_cluster"]
