"""Inference engines as users of tierd: one package each, none of which imports another one or is imported here."""
