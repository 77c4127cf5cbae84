"""How good a policy is: played with, scored beside others, while a run trains and at its end."""
