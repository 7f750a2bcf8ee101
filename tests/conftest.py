"""Property tests repeat: a fixed seed, no deadline (a busy machine is not a failure), and the failing case printed."""
from __future__ import annotations

from hypothesis import settings

settings.register_profile("tawny", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tawny")
