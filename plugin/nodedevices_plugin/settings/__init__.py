"""Flags, environment, configuration file and `spec.config` -> the effective configuration. Only `file` does I/O.

    spec.config (whole sections)  >  flags  >  environment  >  configuration file  >  defaults

`options` is the one table of settings: a flag, its variables, its key in the file. Settings that are fixed while the
agent runs are the fields of its record `Local`. `flags` reads the command line and the environment, `file` the
configuration file (NVIDIA's v1 format), `effective` puts everything together. All are strict: an unknown key or an
impossible value is an error that names the place, the value and what would be right. A bad flag or variable ends the
program at once (it cannot be corrected while it runs); a bad file or `spec.config` is reported, and the last good
configuration stays.
"""
