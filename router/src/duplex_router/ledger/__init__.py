"""The handles that engines gave, found again by the content of a history. Pure: the clock is a parameter."""
