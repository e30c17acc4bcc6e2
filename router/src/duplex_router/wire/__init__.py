"""Bytes only: HTTP heads and bodies, the split and splice of requests, the cut and capture of streams. Pure."""
