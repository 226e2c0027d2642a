"""Files that people and other plugins write: read with bounds, checked with field and value."""
