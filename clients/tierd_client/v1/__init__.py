"""Generated from proto/tierd/v1 by `make proto`."""
