"""The layout `iqpilot-supercombo`: that of `starpilot-single`, without what a runtime of one type knows.

Its metadata is that of its one network, as openpilot writes it: flat, under no role.
"""

from typing import Any

from .driving import Driving


class Supercombo(Driving):
    """A supercombo for IQPilot: one file of metadata, frame skip and JITs."""

    def head(self) -> dict[Any, Any]:
        """Metadata and frame skip."""
        (network,) = self.networks.values()
        return {"metadata": network.metadata, "frame_skip": self.history.frame_skip}
