"""What the networks of a driving model must have been given, worked out in numpy from all that was fed.

It follows the histories' definition and reads none of the artifact's queues: one that is of another depth,
moves the wrong way or is not carried on shows as outputs far from the reference.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import queues
from .feed import Arrays, Exchange
from .network import FEATURES_INPUT, HIDDEN, Network


class Witness:
    """One camera's drive, from its first frame.

    `networks` are in the order they run: the first sees the images and the last is fed the histories.
    """

    def __init__(self, networks: Mapping[str, Network], history: queues.History) -> None:
        self.networks, self.history = networks, history
        self.images, self.policy = next(iter(networks.values())), list(networks.values())[-1]
        self.planes: list[Arrays] = []  # of each step: road and wide, each (1, 6, H/2, W/2)
        self.desires: list[Any] = []  # of each step: (8,)
        self.features: list[Any] = []  # of each step: (512,)

    def take(self, planes: Arrays, values: Mapping[str, Any], outputs: Arrays) -> dict[str, Exchange]:
        """Take a step in: the newest planes, what was fed besides, and each network's output (1, N).

        Returns what each network must have been given in it, by role.
        """
        self.planes.append(planes)
        self.desires.append(np.ravel(values["desire"]))
        self.features.append(outputs[0][0, self.images.slice_of(HIDDEN)])
        given = {**values, **self._images(), **self._histories()}
        exchanges = {}
        for (role, network), output in zip(self.networks.items(), outputs, strict=True):
            inputs = [given[name].reshape(shape) for name, shape in network.shapes.items()]
            exchanges[role] = Exchange(inputs, [output])
        return exchanges

    def _images(self) -> dict[str, Any]:
        """The frame one skip ago, or nothing at all before the first, and the newest."""
        now, ago = self.planes[-1], self._back(self.history.frame_skip)
        pairs = zip(self.images.image_keys, ago, now, strict=True)
        return {name: np.concatenate([old, new], axis=1) for name, old, new in pairs}

    def _back(self, steps: int) -> Arrays:
        if steps < len(self.planes):
            return self.planes[-1 - steps]
        return [np.zeros_like(plane) for plane in self.planes[-1]]

    def _histories(self) -> dict[str, Any]:
        history = self.history
        skip, late = history.frame_skip, history.frame_skip * history.feeds_back
        features = np.zeros((history.feature_steps, queues.FEATURES), np.float32)
        for back, feature in enumerate(self.features[::-1][late::skip][: history.feature_steps]):
            features[-1 - back] = feature
        desires = np.zeros((history.desire_depth, queues.DESIRES), np.float32)
        desires[-len(self.desires) :] = self.desires[-history.desire_depth :]
        pulses = desires.reshape(history.desire_steps, skip, queues.DESIRES).max(axis=1)
        return {FEATURES_INPUT: features, self.policy.desire_key: pulses}
