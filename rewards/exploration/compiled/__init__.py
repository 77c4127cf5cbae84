"""Learned bonuses in compiled calls: `tape` writes down what they learn, `kernel` carries it out."""
