"""The report of a run: a self-contained HTML page, and an image of the learning curve.

This package turns a run's folder into pages for people: reading (``data``, ``episodes``), pure
geometry and sums (``charts``, ``summary``), and writing (``page``, ``curve``; Prefect shows the
image). It only reads the folder, except for ``report/``, so any process may call it at any time
during a run. No Prefect, browser or torch may be imported here.
"""

from tasks_lib.report.curve import learning_curve_png
from tasks_lib.report.page import build_report

__all__ = ["build_report", "learning_curve_png"]
