"""A Flower app in which everything goes wrong once."""
