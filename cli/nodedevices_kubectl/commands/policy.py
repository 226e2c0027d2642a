"""`kubectl nodedevices policy`: what policies make of nodes."""

from __future__ import annotations

import click
from nodedevices_common.raw import Raw
from nodedevices_common.table import Row

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.commands.policy_dry_run import dry_run
from nodedevices_kubectl.listing import Listing, Source, show
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import explain as view
from nodedevices_kubectl.views import facts

MOST_EXPLAINED = 5  # nodes; of more the table alone


@click.group(short_help="Show how policies configure nodes, and what a changed policy would do.")
def policy() -> None:
    """Show how policies configure nodes, and what a changed policy would do."""


policy.add_command(dry_run)


@policy.command(short_help="Where each part of a node's configuration comes from.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@options.with_session
@options.listing
def explain(session: Session, listing: Listing, names: tuple[str, ...]) -> None:
    """Where each part of a node's configuration comes from: which policy supplies the section, which ones it overrides,
    whether it is in effect, and why not.

    \b
    kubectl nodedevices policy explain n1
    kubectl nodedevices policy explain n1 -o yaml     # with the whole values
    """
    policies = {facts.name_of(raw): raw for raw in session.api.list_all(objects.POLICIES)[0]}
    words: list[str] = []
    seen: set[str] = set()

    def rows(item: Raw) -> list[Row]:
        if facts.name_of(item) not in seen and len(seen) < MOST_EXPLAINED:
            seen.add(facts.name_of(item))
            words.extend(view.words(item, policies))
        return list(view.rows(item, policies))

    show(session, listing, Source(view.KIND, rows, names, "No section is set by a policy."))
    for line in words:
        session.say(line)
