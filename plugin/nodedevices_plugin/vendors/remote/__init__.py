"""Remote pools as a vendor."""
