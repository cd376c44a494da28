"""Demo: two methods learn from printed characters to classify handwritten digits, in minutes on two cores.

The characters are from matplotlib's fonts and the digits from scikit-learn; nothing is downloaded.
"""

from mirrorshot.paper.demo.experiment import FULL, QUICK, DemoResult, DemoSettings, Stage, run_demo
from mirrorshot.paper.demo.page import demo_tables, in_words, write_demo

__all__ = ["DemoResult", "DemoSettings", "FULL", "QUICK", "Stage", "demo_tables", "in_words", "run_demo", "write_demo"]
