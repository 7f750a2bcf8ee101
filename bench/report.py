"""Reports under ``build/report``: JSON objects of named lists, written whole."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rtl.emit import write_atomic
from tb.lib.simulators import BUILD


def write(name: str, data: dict[str, Any]) -> Path:
    """Write ``build/report/<name>.json`` and return its path."""
    path = BUILD / "report" / f"{name}.json"
    write_atomic(path, lambda p: p.write_text(json.dumps(data, indent=1) + "\n"))
    return path
