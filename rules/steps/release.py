"""parts and manifests → a release: every file under its published name, linked and never rebuilt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rules.catalog import Catalog, Model, Release
from rules.clients import starpilot
from rules.keeping.records import Output
from rules.releasing import namespace, parts
from rules.step import Made

CHECKSUM = ".sha256"


def names(catalog: Catalog, release: Release) -> dict[str, str]:
    """Published id by model id, in the manifest's order; a release without a suffix keeps the ids.

    That is the catalog's order, but for the ids that `release.after` places.

    Raises CatalogError when the renaming is not one-to-one or would depend on the catalog's order.
    """
    ids = [model.id for model in catalog.members(release)]
    renamed = {one: one for one in ids}
    if release.suffix:
        renamed = namespace.rename(ids, version=release.name, suffix=release.suffix, explicit=release.ids)
    by_name = {new: old for old, new in renamed.items()}
    return {by_name[new]: new for new in namespace.placed(list(by_name), release.after)}


def unreachable(catalog: Catalog, release: Release) -> list[str]:
    """Published ids that no selection made in the earlier release leads to, in the manifest's order.

    A client that finds its selection gone tries that id with the suffix, and the few aliases it knows.
    """
    earlier = (
        {model.id for model in catalog.members(catalog.releases[release.origin])} if release.origin else {}
    )
    renamed = names(catalog, release).items() if release.suffix else ()
    return [new for old, new in renamed if old in earlier and new != old + release.suffix]


def entry(model: Model, published: str) -> dict[str, Any]:
    """A model's manifest entry under its published id."""
    return starpilot.manifest_entry(
        published,
        name=model.name,
        version=model.version,
        series=model.series,
        released=model.released,
        community_favorite=model.community_favorite,
        uses_external_gpu=model.uses_external_gpu,
    )


def manifest(entries: Sequence[Mapping[str, Any]], name: str, scratch: Path) -> Made:
    """The manifest file of a release."""
    path = scratch / name
    path.write_bytes(starpilot.manifest(entries))
    return Made({name: path}, {"models": len(entries)})


@dataclass(frozen=True)
class Artifact:
    """What a release takes of one model: its published id, the whole artifact, or `pieces` in its stead."""

    published: str
    whole: Output
    pieces: tuple[Output, ...]

    @property
    def file(self) -> str:
        """The published file name."""
        return starpilot.artifact_name(self.published)

    def outputs(self, scratch: Path) -> dict[str, Path | str]:
        """Published name → bytes; parts first, the checksum that vouches for them last."""
        if not self.pieces:
            return {self.file: self.whole.sha256}
        found: dict[str, Path | str] = {
            self.file + piece.name: piece.sha256 for piece in self.pieces if piece.name != CHECKSUM
        }
        checksum = scratch / (self.file + CHECKSUM)
        checksum.write_bytes(parts.checksum_line(self.whole.sha256, self.file))
        return {**found, checksum.name: checksum}

    def multipart(self) -> dict[str, Any]:
        """The artifact's line in `multipart.json`."""
        names = parts.part_names(self.file, self.whole.size)
        return {
            "id": self.published,
            "filename": self.file,
            "size": self.whole.size,
            "sha256": self.whole.sha256,
            "parts": names,
        }


def assemble(
    artifacts: Sequence[Artifact], manifest_output: Output, lost: Sequence[str], scratch: Path
) -> Made:
    """The release's folder: artifacts and parts, `multipart.json`, and the manifest last.

    What is noted are the ids that are `lost` to earlier selections.
    """
    outputs: dict[str, Path | str] = {}
    for artifact in artifacts:
        outputs |= artifact.outputs(scratch)
    multipart = scratch / "multipart.json"
    multipart.write_bytes(starpilot.multipart(one.multipart() for one in artifacts if one.pieces))
    outputs[multipart.name] = multipart
    outputs[manifest_output.name] = manifest_output.sha256
    told = f"no earlier selection leads to {', '.join(lost)}: clients try the id with the suffix"
    return Made(outputs, {"artifacts": len(artifacts), "notes": [told] if lost else []})


def id_map(renamed: Mapping[str, str], release: Release, scratch: Path) -> Path:
    """The file that tells which id became which."""
    path = scratch / starpilot.id_map_name(release.name)
    path.write_bytes(
        starpilot.id_map(renamed, source=release.origin or "", target=release.name, suffix=release.suffix)
    )
    return path
