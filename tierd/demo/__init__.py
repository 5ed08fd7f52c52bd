"""`tierd demo`: the daemon, two workers with a real language model, three rounds of prompts, one kill -9."""
