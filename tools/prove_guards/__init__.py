"""Takes each safety guard out of a copy of the source, one at a time, and shows that a named test then fails."""
