"""Flags, environment, configuration file and `spec.config` -> what the agent does. Pure but for reading the file.

    spec.config (whole sections)  >  flags  >  environment  >  configuration file  >  defaults

`options` is the one table of settings: a flag, its variables, its key in the file; of those that are fixed while the
agent runs it takes the fields of `local.Local`, the record that has their values. `flags` reads the command line and
the environment, `file` the configuration file (NVIDIA's v1 format), `effective` puts everything together. All are
strict: what is not known or not possible is an error that names the place, the value and what would be right. A bad
flag or variable ends the program at once (it cannot be corrected while it runs); a bad file or `spec.config` is
reported, and the last good configuration stays.
"""
