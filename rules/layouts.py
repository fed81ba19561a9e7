"""The layouts of a compiled model: which files each has, where they lie, and which models may have it."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from rules.clients import iqpilot, openpilot, starpilot
from rules.errors import ArtifactError

RELEASED, SPLIT, SUPERCOMBO = "starpilot-single", "openpilot-split", "iqpilot-supercombo"
ARTIFACT = "artifact"
GENERIC, MONITORING = "generic", "dmonitoring"
OF_ONE_FILE = {
    RELEASED: starpilot.artifact_name,
    SUPERCOMBO: iqpilot.artifact_name,
    GENERIC: "{}_tinygrad.pkl".format,
}


class Limits(NamedTuple):
    """What a layout knows one of only: the contract, and the types of model that fit."""

    contract: str
    types: tuple[str, ...]


# How artifacts of a layout are written, where they were once written otherwise; in build keys.
FORMS = {
    RELEASED: "key lists name the runtime's queues",
    SUPERCOMBO: "metadata is flat",
}
LIMITS = {
    SPLIT: Limits("warp", ("vision_policy", "vision_multi_policy")),
    SUPERCOMBO: Limits("policy", ("supercombo",)),
}


def names(layout: str, roles: Iterable[str], cameras: Collection[object]) -> list[str]:
    """The worker's names for the files of one model: `roles` are its networks, `cameras` print as WxH."""
    sizes = [str(camera) for camera in cameras]
    if layout == MONITORING:
        return [*openpilot.network_names("dmonitoring_model"), *(openpilot.dm_warp_name(s) for s in sizes)]
    if layout != SPLIT:
        return [ARTIFACT]
    networks = [name for role in roles for name in openpilot.network_names(f"driving_{role}")]
    return [*networks, *(openpilot.warp_name(size) for size in sizes)]


def check(model_id: str, layout: str, kind: str) -> None:
    """Raise ArtifactError when models of the type `kind` cannot have the layout."""
    if layout in LIMITS and kind not in LIMITS[layout].types:
        wanted = " or ".join(LIMITS[layout].types)
        raise ArtifactError(
            f"{model_id}: its files make a {kind}, expected a {wanted} for the layout {layout}",
            fix=f"give models.{model_id} another layout in models.toml",
        )


def path(layout: str, model_id: str, name: str) -> str:
    """Where below the folder of compiled models the file `name` of one model lies.

    Raises ArtifactError for an ID that cannot be part of a file's name.
    """
    if layout in OF_ONE_FILE:
        return OF_ONE_FILE[layout](model_id)
    return name if layout == MONITORING else f"{model_id}/{name}"
