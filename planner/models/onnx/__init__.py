"""ONNX files as networks: nothing of them is run, and their weights are not read.

What reads them is imported when there is one: it takes long.
"""

from __future__ import annotations

import os


def is_onnx_file(source: object) -> bool:
    """Whether a source names an ONNX file."""
    return isinstance(source, str | os.PathLike) and os.fspath(source).endswith(".onnx")
