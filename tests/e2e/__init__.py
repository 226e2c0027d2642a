"""End-to-end tests. A package, so that their cluster ends with the last of them and not with the run."""
