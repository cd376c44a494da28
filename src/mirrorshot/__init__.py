"""Bayesian few-shot classification with probabilities that mean what they say."""
