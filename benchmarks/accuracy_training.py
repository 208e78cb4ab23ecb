"""`python -m benchmarks.accuracy_training FOLDER`: measured rows on several GPUs by simulation.

See `benchmarks.accuracy.__main__`.
"""

from __future__ import annotations

from benchmarks.accuracy.__main__ import training_main

if __name__ == "__main__":
    training_main()
