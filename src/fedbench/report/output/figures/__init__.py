"""Figures of a study, a module a family of forms: `draw` makes them, `save` writes them, `describe`
says them.
"""

from fedbench.report.output.figures.draw import FORMS, draw
from fedbench.report.output.figures.files import describe, save

__all__ = ["FORMS", "describe", "draw", "save"]
