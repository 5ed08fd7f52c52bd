"""`tierd bench`: how near to the limits of this machine the product works, each limit measured in the same run."""
