"""vLLM as a user of tierd: an OffloadingSpec (offloading.py) or a KV connector (connector.py); and `lrfu` for its
own CPU tier (policy.py)."""
