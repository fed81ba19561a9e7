"""`doit reconcile DIR`: a handed-over release folder brought under the names of a release."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules.commands import selection
from rules.commands.arguments import UsageError, option
from rules.commands.command import CatalogCommand
from rules.commands.run import WAIT
from rules.errors import ArtifactError, printable

if TYPE_CHECKING:
    from rules.catalog import Catalog, Release
    from rules.graph import Graph
    from rules.releasing.reconcile import Known, Naming


class Reconcile(CatalogCommand):
    """Artifacts, their parts, `multipart.json` and the manifest of a flat folder get published names."""

    doc_purpose = "bring a handed-over release folder under the names of a release"
    doc_usage = "DIR [--release vNN] [--dry-run]"
    doc_description = (
        "Files named by a model's own ID get its published one, an equal duplicate is dropped, macOS's ._* "
        "files go, and a model that the release's `after` places gets an entry in the manifest when its "
        "artifact is here. A name that other bytes have is refused; then nothing is changed."
    )
    cmd_options = (
        option("release", "the release [default: the one that renames its models]", kind=str),
        option("source", "this ID is the source's here, although the release has it too", kind=list),
        option("published", "this ID is the release's here, although a source has it too", kind=list),
        option("dry_run", "tell what would be done, and change nothing"),
        WAIT,
    )
    least = most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Reconcile and tell. Raises YardError."""
        from rules.releasing.reconcile import ARTIFACT, holds_artifacts, reconcile, strangers

        folder = Path(operands[0]).resolve()
        graph = self.yard(options).graph
        release = _release(graph.catalog, options["release"])
        naming = _naming(graph.catalog, release)
        known = _known(naming, options)
        _check_folder(folder, graph)
        with _alone(folder, graph, wait=options["wait"]):
            kept = graph.workspace.hidden / "reconcile"
            done = reconcile(folder, naming, known, kept=kept, dry=options["dry_run"])
            left = strangers(folder, naming)
            if not done and not holds_artifacts(folder):
                raise ArtifactError(
                    f"{folder}: no driving model's artifact is in it, expected ID{ARTIFACT} files",
                    fix="name the folder that was handed over",
                )
        for line in [*done, *(f"{one}: no model of {release.name}, left as it is" for one in left)]:
            print(printable(line))
        verb = "would be changed (--dry-run)" if options["dry_run"] else "changed"
        print(f"{printable(folder)}: {verb if done else f'already as {release.name} names it'}")
        return 0


def _release(catalog: "Catalog", name: str | None) -> "Release":
    """The release of that name, or the one that renames. Raises UsageError."""
    if name is None:
        renaming = [one for one in catalog.releases.values() if one.suffix]
        if len(renaming) == 1:
            return renaming[0]
        told = ", ".join(one.name for one in renaming) or "none"
        raise UsageError(
            f"doit reconcile: expected one release that renames its models, got {told}",
            fix="name the release: --release vNN",
        )
    if name not in catalog.releases:
        raise selection.unknown("release", name, catalog.releases)
    return catalog.releases[name]


def _naming(catalog: "Catalog", release: "Release") -> "Naming":
    from rules.releasing.reconcile import Naming
    from rules.steps import release as releasing

    names = releasing.names(catalog, release)
    placed = {new: old for old, new in names.items() if new in release.after}
    entries = {new: releasing.entry(catalog.models[old], new) for new, old in placed.items()}
    return Naming(release.name, names, release.after, entries)


def _known(naming: "Naming", options: dict[str, Any]) -> "Known":
    from rules.releasing.reconcile import Known

    for one in (*options["source"], *options["published"]):
        if one not in naming.names or one not in naming.before:
            both = sorted(set(naming.names) & set(naming.before))
            raise UsageError(
                f"{one}: expected an ID that two models go by, one as a source and one in {naming.release} "
                f"({', '.join(both) or 'there is none'})",
                fix="leave the option out",
            )
    if twice := sorted({*options["source"]} & {*options["published"]}):
        raise UsageError(f"{twice[0]}: both --source and --published", fix="say one of them")
    return Known(options["source"], options["published"])


def _check_folder(folder: Path, graph: "Graph") -> None:
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: no such folder", fix="name the folder that was handed over")
    workspace, makers = graph.workspace, dict[Path, str]()
    for step in graph.steps.values():
        folders = [step.owns] if step.owns else [str(Path(one).parent) for one in step.targets]
        makers |= {workspace.path(one): step.task for one in folders}
    makers[workspace.root] = "all of it"
    maker = ".store" if folder.is_relative_to(workspace.hidden) else makers.get(folder)
    if maker:
        raise ArtifactError(
            f"{folder}: holds what doit makes ({maker}), under names of its own",
            fix="name a folder that was handed over",
        )


@contextlib.contextmanager
def _alone(folder: Path, graph: "Graph", *, wait: bool) -> Any:
    """Hold the folder while it is changed, and the workspace that it lies in."""
    from rules.keeping.lock import alone_in, holding

    workspace = graph.workspace
    with contextlib.ExitStack() as stack:
        if folder.is_relative_to(workspace.root):
            stack.enter_context(holding(workspace.lock, "doit reconcile", wait=wait))
        stack.enter_context(alone_in(folder, "doit reconcile", wait=wait))
        yield
