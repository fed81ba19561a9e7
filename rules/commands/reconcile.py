"""`doit reconcile DIR`: a handed-over release folder brought under the names of a release."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules.commands import selection
from rules.commands.arguments import UsageError, option
from rules.commands.command import CatalogCommand
from rules.commands.run import WAIT
from rules.counting import counted
from rules.errors import ArtifactError, printable

if TYPE_CHECKING:
    from rules.catalog import Catalog, Release
    from rules.graph import Graph
    from rules.releasing.reconcile import Known, Naming


class Reconcile(CatalogCommand):
    """Artifacts, their parts, `multipart.json` and the manifest of a flat folder get published names."""

    doc_purpose = "bring a handed-over release folder under the names of a release"
    doc_usage = "DIR|ROOT [--release vNN] [--dry-run]"
    doc_description = (
        "Files named by a model's own ID get its published one, an equal duplicate is dropped, macOS's ._* "
        "files go, and a model that the release's `after` places gets an entry in the manifest when its "
        "artifact is here. A name that other bytes have is refused; then nothing is changed. Of a workspace "
        "ROOT that is its ready-for-resources/, with the manifest in manifests/. Entries of a manifest "
        "without an artifact are listed; the exit code is 1 then."
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
        from rules.releasing.reconcile import missing, reconcile, strangers

        graph = self.yard(options).graph
        release = _release(graph.catalog, options["release"])
        naming = _naming(graph.catalog, release)
        known = _known(naming, options)
        folder, lists = _places(Path(operands[0]).resolve(), naming, graph)
        _check_folder(folder, naming, lists, graph)
        with _alone((folder, *lists), graph, wait=options["wait"]):
            kept, dry = graph.workspace.hidden / "reconcile", bool(options["dry_run"])
            done = reconcile(folder, naming, known, kept=kept, dry=dry, lists=lists)
            lost = missing(folder, naming, known, kept=kept, dry=dry, lists=lists)
            left = strangers(folder, naming)
        told = [*(f"{one}: no model of {release.name}, left as it is" for one in left)]
        told += [f"{one}: in the manifest, and no artifact of it here, whole or in parts" for one in lost]
        for line in (*done, *told):
            print(printable(line))
        verb = "would be changed (--dry-run)" if dry else "changed"
        unchanged = "nothing to rename" if lost else f"already as {release.name} names it"
        lacking = f", and lacks {counted(len(lost), 'artifact')}" if lost else ""
        print(f"{printable(folder)}: {verb if done else unchanged}{lacking}")
        return 1 if lost else 0


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


def _places(named: Path, naming: "Naming", graph: "Graph") -> tuple[Path, list[Path]]:
    """The folder of the artifacts, and those of further manifests, of a release folder or a workspace."""
    from rules.clients import starpilot
    from rules.keeping import files
    from rules.releasing.reconcile import is_release
    from rules.releasing.withdrawn import RELEASES

    folder, lists = named, []
    if files.is_folder(ready := named / RELEASES):
        own = ready / naming.release
        folder = own if files.is_folder(own) and not is_release(ready, naming) else ready
        lists = [named / "manifests"] if named != graph.workspace.root else []  # those there are doit's
    lists.append((folder / starpilot.place(naming.release, starpilot.manifest_name(naming.release))).parent)
    return folder, [one for one in lists if one != folder and files.is_folder(one)]


def _check_folder(folder: Path, naming: "Naming", lists: list[Path], graph: "Graph") -> None:
    from rules.releasing.reconcile import is_release

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
    if not any(is_release(one, naming) for one in (folder, *lists)):
        raise ArtifactError(
            f"{folder}: no driving model's artifact is in it, and no manifest of {naming.release}",
            fix="name the folder that holds them, or the workspace whose ready-for-resources/ does",
        )


@contextlib.contextmanager
def _alone(folders: tuple[Path, ...], graph: "Graph", *, wait: bool) -> Any:
    """Hold the folders while they are changed, and the workspace that one lies in."""
    from rules.keeping.lock import alone_in, holding

    workspace = graph.workspace
    with contextlib.ExitStack() as stack:
        if any(one.is_relative_to(workspace.root) for one in folders):
            stack.enter_context(holding(workspace.lock, "doit reconcile", wait=wait))
        for one in folders:
            stack.enter_context(alone_in(one, "doit reconcile", wait=wait))
        yield
