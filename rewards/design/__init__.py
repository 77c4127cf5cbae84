"""Rewards that `runners.design` makes: code from an author, tables from a finite model; and who writes the code."""
