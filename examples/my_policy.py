"""A policy of your own. From this folder:

    fedfade compare quickstart --policies random,my_policy:Politeness,perfect

A dotted path is code that will run; it is looked for in the working folder and on PYTHONPATH.
"""

import torch

from fedfade.allocation import Action, View, full_power


class Politeness:
    """Send on the own best sub-band, but only in slots in which it is really good."""

    name = "politeness"
    scope = "local"  # sees its own fading and progress, and everybody's large-scale gain
    gradient_aware = False

    def begin(self, view: View) -> None:
        """Nothing to prepare before the first slot."""

    def act(self, view: View, memory: None) -> Action:
        """-1 means silent."""
        gain, band = view.fading.max(-1)  # [episode, client]
        return full_power(view, torch.where(gain > 2.0, band, -1))
