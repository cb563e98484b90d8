"""What a bit of channel knowledge buys: uploads per round, rung by rung.

A rung is what clients may know; its policies use no more than that. In every cell (mean SNR x
spread of gains on a ring, and the preset's own) and at every speed all policies play the same
rounds, without learning; agents that look at gradients see invented ones.

    OUT/runs/CELL-SPEED-DIGEST.csv   uploads of every policy and seed; what is there is not redone
    OUT/policies.csv                 means over seeds
    OUT/ladder.csv                   the best policy of every rung, and what the rung adds
    OUT/ladder.png, OUT/ladder.md    the same to look at
    OUT/accuracy/, OUT/accuracy.csv  federated runs in two of the cells, where asked for
"""
