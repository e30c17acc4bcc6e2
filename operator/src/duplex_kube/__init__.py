"""Kubernetes over plain dicts: a client, server-side apply, and a watch cache. Knows no domain.

``api`` is the interface, ``client`` the implementation, ``reflector`` the cache, ``errors`` what can go wrong.
"""
