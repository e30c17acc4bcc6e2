"""The one error of the lab: what failed, and what to do about it."""


class LabError(Exception):
    """The lab cannot do what was asked. The text says why and what helps; no traceback is needed to act on it."""
