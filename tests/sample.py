"""Of the parameters of a test some run in the fast suite, and all at night."""

import pytest


def mostly_at_night(parameters, *fast):
    """The same parameters, of which those that are not among `fast` are marked nightly."""
    found = []
    for parameter in parameters:
        values = parameter if isinstance(parameter, tuple) else (parameter,)
        marks = () if parameter in fast else pytest.mark.nightly
        found.append(pytest.param(*values, marks=marks))
    return found
