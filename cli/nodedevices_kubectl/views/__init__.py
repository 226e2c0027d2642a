"""Objects of the API server to rows and text. Pure: raw objects in, rows out, the time an argument.

Anybody may have written what is in an object, and an older or newer agent a status of another shape: what has another
type reads as absent, and nothing here raises for it.
"""
