"""vLLM as a user of tierd: an OffloadingSpec (offloading.py), or a KV connector (connector.py)."""
