"""`fedfade levers`: what closes the gap to perfect upload, allocation, compression or aggregation?

plan   what is compared, from levers.yaml
runs   federated runs of it, side by side, and tables of how they ended
page   two pictures and a page
"""
