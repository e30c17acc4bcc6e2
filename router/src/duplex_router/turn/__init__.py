"""One client request and its answer: the legs, their order, retries, and what becomes of holds. No sockets."""
