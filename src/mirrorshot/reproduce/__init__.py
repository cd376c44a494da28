"""Every table and figure of the paper, measured again and set beside what it printed.

T. Ke, H. Cao and F. Zhou, "Accelerating Convergence in Bayesian Few-Shot Classification", ICML 2024. `published` holds
its numbers, `cells` and `runner` train and test, `tables` compares; `inner_loop`, `outer_loop` and `timing` are its
other experiments, `departures` shows where the released code does something else.
"""
