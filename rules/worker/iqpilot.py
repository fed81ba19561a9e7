"""The layout `iqpilot-supercombo`: that of `starpilot-single`, without what a runtime of one type knows."""

from typing import Any

from .driving import Driving


class Supercombo(Driving):
    """A supercombo for IQPilot: one file of metadata, frame skip and JITs."""

    def head(self) -> dict[Any, Any]:
        """Metadata and frame skip."""
        head = super().head()
        return {name: head[name] for name in ("metadata", "frame_skip")}
