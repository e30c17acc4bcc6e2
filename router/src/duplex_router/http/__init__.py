"""Sockets: the clients' connections, and the pool of connections to engines."""
