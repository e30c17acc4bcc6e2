"""The router: two legs per turn, the ledger of handles, and who serves."""
