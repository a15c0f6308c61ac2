"""The report of a run: a self-contained HTML page and a learning curve.

The curve is an image, for Prefect.

Here lives what turns a run's folder into something a person can look at: reading (``data``, ``episodes``), pure
geometry and sums (``charts``, ``summary``), and writing (``page``, ``curve``). It only reads the folder, except for
``report/``, so it may be called at any moment of a run, by any process. No Prefect, browser or torch may be imported
here.
"""

from tasks_lib.report.curve import learning_curve_png
from tasks_lib.report.page import build_report

__all__ = ["build_report", "learning_curve_png"]
