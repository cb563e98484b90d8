"""A Flower app whose uploads fade."""
