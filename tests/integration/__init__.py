"""Tests on a real API server. A package, so that it ends with the last of them and not with the run."""
