"""Multi-tier KV-cache offload daemon."""
