"""vLLM as a user of tierd: an OffloadingSpec (offloading.py)."""
