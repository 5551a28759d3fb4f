"""How long an exchange of gradients takes, by how many servers there are and where: before a machine is rented.

``model.py`` predicts, from ``costs.py`` and the formulas of ``core/shares.py``; ``layouts.py`` lists what there is to
choose from; ``one_host.py`` chooses for ``bpslaunch``; the rest is the command ``bps plan``.  What is named here loads
no NumPy, since the launcher uses it.
"""

from __future__ import annotations

from byteps_py.plan.costs import Costs
from byteps_py.plan.model import Prediction, predict

__all__ = ["Costs", "Prediction", "predict"]
