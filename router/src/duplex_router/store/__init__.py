"""The ledger that several routers share, in Valkey or Redis: optional, soft, and never in a client's way."""
