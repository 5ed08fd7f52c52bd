"""vLLM as a user of tierd: an OffloadingSpec (offloading.py), a KV connector (connector.py), or a tier below vLLM's
own CPU tier (tier.py); and `lrfu` for that (policy.py)."""
