"""`kubectl nodedevices`: what devices the cluster has, who holds them, whether they are well, and what to do.

    commands/   the commands: their options, what they read, what they write
    session     what one run has: options, clock, streams, the API server's client once it is needed
    views/      objects of the API server to rows and text; decides everything, does no I/O
    listing     rows as a table (nodedevices_common.table), as JSON and YAML; and what changes (-w)
    api         the client, with nodedevices_kube
    objects     where objects are

Data goes to stdout, words to stderr. Text that others wrote in objects reaches a terminal with its control characters
escaped. A command that a shell runs at each prompt must start at once: a module that is slow to load (pydantic,
`kubernetes`: both slower than all of this package) is imported by none of these (tests/programs/cli holds it).
"""
