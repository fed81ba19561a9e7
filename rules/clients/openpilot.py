"""What openpilot's modeld expects: the names of its files, one for each network, its metadata, each warp."""


def network_names(network: str) -> tuple[str, str]:
    """The files of one network, such as `driving_vision`: its JIT, and its metadata."""
    return f"{network}_tinygrad.pkl", f"{network}_metadata.pkl"


def warp_name(camera: str) -> str:
    """The road cameras' warp for frames of a size such as `1928x1208`."""
    return f"warp_{camera}_tinygrad.pkl"


def dm_warp_name(camera: str) -> str:
    """The driver camera's warp for frames of a size such as `1928x1208`."""
    return f"dm_warp_{camera}_tinygrad.pkl"
